"""What a reply costs the server is bounded by its size, whatever it claims; and the harness sees what it should."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from isthmus.algorithms import FedAvg
from isthmus.algorithms.fedgl import Guidance, ShareNodes
from isthmus.core.federation import Federation
from isthmus.core.protocol import ModelState, Request, on
from isthmus.core.record import Record
from isthmus.learn.graph_client import GraphClient
from isthmus.testing import check_claims, check_claims_between_sites
from isthmus.testing.hostile.siege import known_here
from tests.quick import quick
from tests.testing.hostile.test_lying import some
from tests.testing.hostile.worlds import world_of


@pytest.mark.parametrize("name", some("fedgl"))
def test_receiving_and_judging_whatever_is_claimed_costs_a_bounded_multiple_of_the_message(name: str) -> None:
    assert len(check_claims(quick(name), world_of(name))) >= 80


@pytest.mark.parametrize("name", some("gfl_appnp"))
def test_no_claim_makes_the_server_do_more_than_its_bytes_allow(name: str, tmp_path: Path) -> None:
    assert check_claims_between_sites(quick(name), tmp_path, world_of(name))


# ---- the harness sees what it should


@dataclass(frozen=True)
class Rows(Record):
    """Some rows."""

    rows: Tensor
    """(nodes, 2)."""


@dataclass(frozen=True)
class ShareRows(Request[Rows]):
    """Asks for a row for each node."""


@dataclass(frozen=True)
class ShareRowsCarefully(Request[Rows]):
    """Asks for the same, and makes a number of each row to look at it."""

    def problem(self, reply: Rows) -> str:
        return "" if bool((torch.zeros(len(reply.rows)) == 0).all()) else "it cannot be"


@dataclass(frozen=True)
class Gram(FedAvg):
    """A server that compares every row of a client with every other."""

    def setup(self, fed: Federation) -> ModelState:
        for reply in fed.ask(ShareRows()).values():
            reply.rows @ reply.rows.t()
        return super().setup(fed)

    @on(ShareRows)
    def share_rows(self, request: ShareRows, client: GraphClient) -> Rows:
        return Rows(torch.ones(client.num_nodes, 2))


@dataclass(frozen=True)
class Careful(FedAvg):
    """A server that takes memory for every row that is claimed."""

    def setup(self, fed: Federation) -> ModelState:
        fed.ask(ShareRowsCarefully())
        return super().setup(fed)

    @on(ShareRowsCarefully)
    def share_rows(self, request: ShareRowsCarefully, client: GraphClient) -> Rows:
        return Rows(torch.ones(client.num_nodes, 2))


@pytest.mark.slow
def test_a_matrix_of_n_by_n_that_follows_from_a_claim_is_seen(tmp_path: Path) -> None:
    with known_here(Gram), pytest.raises(AssertionError, match=r"claims 20000 nodes in .* bytes of tensors"):
        check_claims_between_sites(Gram(), tmp_path)


@pytest.mark.slow
def test_memory_that_is_taken_for_rows_of_nothing_is_seen() -> None:
    with pytest.raises(AssertionError, match=r"16777215 rows of nothing\) took \d\d,\d+,\d+ bytes of tensors"):
        check_claims(Careful())


def test_a_server_that_believes_how_many_nodes_there_are_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ShareNodes, "num_nodes", lambda self, reply: 0)
    monkeypatch.setattr(Guidance, "problem", lambda self, num_nodes: "")  # the liar itself does not mind
    with pytest.raises(AssertionError, match=r"claims 20000 nodes in .* bytes of tensors"):
        check_claims_between_sites(quick("fedgl"), tmp_path)


def test_a_reason_as_long_as_the_reply_many_times_over_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isthmus.core.federation.judging.foreign", lambda text, limit=0: text * 1000)
    with pytest.raises(AssertionError, match="bytes of Python objects"):
        check_claims(FedAvg())

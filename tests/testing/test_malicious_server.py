"""A malicious server against a silo of every algorithm; and the harness sees what it should."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from isthmus.algorithms import ALGORITHMS, GFLAPPNP, FedAvg, FedGNN, Local
from isthmus.algorithms.fedavg import ModelUpdate
from isthmus.core.client import Client
from isthmus.core.protocol import Algorithm
from isthmus.runtime.reasons import Reasons
from isthmus.testing import SIEGES, besiege
from isthmus.testing.malicious_server import lay_siege
from tests.quick import quick

NAMES = [name for name, kind in ALGORITHMS.items() if not kind.pooled]
SOME = ("fedgnn", "gfl_appnp", "fedsage_plus", "local")
OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in NAMES if name not in SOME]


def noisy(name: str) -> Algorithm[Any]:
    return GFLAPPNP(noise_std=0.5) if name == "gfl_appnp" else quick(name)


@pytest.mark.parametrize("name", [*SOME, *OTHERS])
def test_no_siege_gets_through(name: str, tmp_path: Path) -> None:
    besiege(noisy(name), tmp_path)


# ---- the harness sees what it should


def test_noise_that_is_drawn_again_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def by_position(self: Client, purpose: str, guarded: Any) -> Any:
        assert self.secret is not None
        return self.secret.stream(self.position.round, self.position.exchange, purpose)

    monkeypatch.setattr(Client, "protecting", by_position)
    with pytest.raises(AssertionError, match="at the same place got the same noise"):
        SIEGES["noise"](lay_siege(FedGNN(expand_every=0), tmp_path))


def test_personal_parts_that_leave_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    siege = lay_siege(Local(), tmp_path)
    march = siege.march

    def leaking() -> Any:
        for message, reply, memory in march():
            own = Local().client_params({}, siege.memory(memory))
            yield message, ModelUpdate(own, 1.0) if own else reply, memory

    monkeypatch.setattr(siege, "march", leaking)
    with pytest.raises(AssertionError, match="silo's own"):
        SIEGES["personal"](siege)


def test_refusals_that_tell_more_than_their_kind_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reasons, "crossing", lambda self, kind, reason: f"{kind}: {reason}")
    with pytest.raises(AssertionError, match="tells more than its kind"):
        SIEGES["memories"](lay_siege(FedAvg(), tmp_path))


def test_a_silo_without_bounds_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    siege = lay_siege(FedAvg(), tmp_path)
    monkeypatch.setattr("isthmus.federation.policy.Policy._of_sizes", lambda self, course: "")
    with pytest.raises(AssertionError, match="takes part in a course with"):
        SIEGES["proposals"](siege)

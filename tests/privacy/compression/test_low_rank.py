from __future__ import annotations

import numpy as np
import pytest
import torch

from isthmus.core.errors import BadMessage
from isthmus.privacy.compression.blob import Form, Kind, write_blob
from isthmus.privacy.compression.low_rank import LowRank
from tests.privacy.compression.test_factors import gram_schmidt, matrix
from tests.privacy.compression.toys import Answer, Pair, Question, model


def power_sgd(changes: list[np.ndarray], start: np.ndarray, feedback: bool) -> list[np.ndarray]:
    """Vogels et al., algorithms 1 and 2, for one worker, in double precision and with plain loops."""
    found, error, q = [], np.zeros_like(changes[0]), start
    for change in changes:
        rows, columns, rank = *change.shape, q.shape[1]
        m = change + error
        p = np.array([[sum(m[i, j] * q[j, r] for j in range(columns)) for r in range(rank)] for i in range(rows)])
        p = gram_schmidt(p)
        q = np.array([[sum(m[i, j] * p[i, r] for i in range(rows)) for r in range(rank)] for j in range(columns)])
        crossed = np.array([[sum(p[i, r] * q[j, r] for r in range(rank)) for j in range(columns)] for i in range(rows)])
        error = m - crossed if feedback else error
        found.append(crossed)
    return found


@pytest.mark.parametrize("feedback", [True, False])
@pytest.mark.parametrize("rank", [1, 3])
def test_replies_of_many_rounds_are_those_of_a_slow_loop(rank: int, feedback: bool) -> None:
    pair = Pair(LowRank(rank=rank, bits=32, error_feedback=feedback, direction="up"))
    sent = [model(round) for round in range(4)]
    trained = [model(50 + round, near=sent[round]["w"]) for round in range(4)]
    pair.down({"a": Question(sent[0])})
    first = pair.at_client("a").client.generator("guard.0.G.params['w']")
    start = torch.randn(30, rank, generator=first).double().numpy()
    changes = [(t["w"] - s["w"]).double().numpy() for s, t in zip(sent, trained, strict=True)]
    for round, expected in enumerate(power_sgd(changes, start, feedback)):
        if round:
            pair.down({"a": Question(sent[round])})
        came = pair.up("a", Answer(trained[round], {})).params["w"] - sent[round]["w"]
        assert np.allclose(came.numpy(), expected, atol=2e-4)


def test_a_change_of_the_rank_comes_back_and_bits_add_their_step_alone() -> None:
    change = matrix(20, 30, 2)
    for bits, far in ((32, 1e-4), (8, 0.05)):
        pair = Pair(LowRank(rank=2, bits=bits))
        pair.down({"a": Question({"w": torch.zeros(20, 30)})})
        came = pair.up("a", Answer({"w": change}, {})).params["w"]
        assert float((came - change).norm()) < far * float(change.norm())


def test_a_change_of_nothing_does_not_spoil_the_factor_for_what_comes() -> None:
    pair, zero, change = Pair(LowRank(rank=2, bits=32)), torch.zeros(20, 30), matrix(20, 30, 2)
    for answer in (zero, change):
        pair.down({"a": Question({"w": zero})})
        came = pair.up("a", Answer({"w": answer}, {})).params["w"]
        assert torch.allclose(came, answer, atol=1e-4)


@pytest.mark.parametrize("shape", [(600,), (2, 300), (1, 600), (0, 5), ()])
def test_tensors_that_factors_would_not_make_smaller_cross_as_they_are(shape: tuple[int, ...]) -> None:
    pair, value = Pair(LowRank(rank=2, min_numbers=1)), torch.randn(shape)
    pair.down({"a": Question({"w": torch.zeros(shape)})})
    assert pair.up("a", Answer({"w": value}, {})).params["w"] is value


def test_factors_of_another_rank_are_refused() -> None:
    wire = write_blob(Kind.LOW_RANK, Form(torch.float32, (20, 30)), [(3).to_bytes(2, "little")])
    guard, pair = LowRank(rank=2), Pair(LowRank(rank=2))
    with pytest.raises(BadMessage, match="factors of rank 3, expected 2"):
        guard.applied(wire, model(0)["w"], guard._draws_at_server("w", b"", pair.at_server()))


@pytest.mark.parametrize("bad", [{"rank": 0}, {"rank": 1025}, {"bits": 3}])
def test_settings_that_cannot_be_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"it must be|choose"):
        LowRank(**bad)  # type: ignore[arg-type]

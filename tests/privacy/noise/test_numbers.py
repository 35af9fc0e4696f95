"""The change of a reply: its length by the plainest arithmetic, and clipped as the floats that leave."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from isthmus.algorithms.fedavg import ModelUpdate, TrainModel
from isthmus.algorithms.scaffold import CorrectedUpdate, TrainCorrected
from isthmus.core.errors import BadInput, CourseFailed
from isthmus.core.protocol import Known, Request
from isthmus.core.random import Secret
from isthmus.core.record import Record
from isthmus.privacy.noise.numbers import Change, clipped, numbers_of, unchanged
from tests.core.toys import quick


@dataclass(frozen=True)
class Mixed(Record):
    params: dict[str, torch.Tensor]
    bias: float
    weight: float


@dataclass(frozen=True)
class AskMixed(Request[Mixed]):
    params: dict[str, torch.Tensor]


@dataclass(frozen=True)
class Named(Record):
    word: str
    weight: float


@dataclass(frozen=True)
class AskNamed(Request[Named]):
    pass


def length(reply: ModelUpdate, request: TrainModel) -> float:
    """Return the norm of what changed, number by number."""
    total = 0.0
    for name, tensor in reply.params.items():
        for after, before in zip(tensor.flatten().tolist(), request.params[name].flatten().tolist(), strict=True):
            total += (after - before) ** 2
    return math.sqrt(total)


@quick
@given(st.floats(1e-3, 1e6), st.floats(0.0, 1e4), st.floats(1e-2, 10.0), st.integers(0, 10**6))
@example(3.0, 7906.905631371957, 0.01, 4973)  # a change much longer than the clip, which floats of 3 can express
def test_what_leaves_is_never_longer_than_the_clip(size: float, moved: float, clip: float, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    start = {"a": size * torch.randn(3, 4, generator=draw), "b": torch.randn(5, generator=draw)}
    request = TrainModel(start)
    reply = ModelUpdate({n: w + moved * torch.randn(w.shape, generator=draw) for n, w in start.items()}, 3.0)
    try:
        found = clipped(reply, request, clip)
    except BadInput as error:
        assert "which is less than the numbers of" in str(error) and size * 1e-7 > clip * 1e-2
        return
    assert isinstance(found, ModelUpdate)
    assert length(found, request) <= clip * (1 + 1e-12)
    if length(reply, request) <= clip:
        assert found is reply
    elif size < 10.0:
        assert length(found, request) > clip * (1 - 1e-3)
        before, after = Change.of(reply, request), Change.of(found, request)
        cosine = sum(float((before.moved[p] * after.moved[p]).sum()) for p in before.moved) / before.norm / after.norm
        assert cosine == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_clip_just_below_the_step_between_floats_is_judged_at_once(dtype: torch.dtype, sign: float) -> None:
    start = torch.full((1,), 1.0, dtype=dtype)
    step = torch.nextafter(start, torch.tensor([2.0], dtype=dtype)) - start
    request, reply = TrainModel({"w": sign * start}), ModelUpdate({"w": sign * (start + 8 * step)}, 1.0)
    found = clipped(reply, request, float(7 * step) * (1 - 1e-9))
    assert isinstance(found, ModelUpdate) and torch.equal(found.params["w"], sign * (start + 6 * step))
    with pytest.raises(BadInput, match="less than the numbers of ModelUpdate can be changed by"):
        clipped(reply, request, float(step) * (1 - 1e-9))


def test_what_is_sent_in_finer_numbers_than_come_back_is_not_clipped_beyond_them() -> None:
    request = TrainModel({"w": torch.tensor([1.0 + 2.0**-30], dtype=torch.float64)})
    with pytest.raises(BadInput, match="less than the numbers of ModelUpdate can be changed by"):
        clipped(ModelUpdate({"w": torch.tensor([2.0])}, 1.0), request, 2.0**-31)


def test_numbers_of_all_kinds_count_in_one_length() -> None:
    request = AskMixed({"w": torch.zeros(2)})
    reply = Mixed({"w": torch.tensor([3.0, 0.0])}, 4.0, 7.0)
    assert Change.of(reply, request).norm == 5.0
    found = clipped(reply, request, 1.0)
    assert isinstance(found, Mixed)
    assert found.params["w"].tolist() == pytest.approx([0.6, 0.0], rel=1e-5) and found.bias == pytest.approx(
        0.8, rel=1e-5
    )
    assert found.weight == 7.0  # no number that is averaged


def test_what_the_request_does_not_hold_starts_at_zero() -> None:
    sent = TrainCorrected({"w": torch.ones(1)}, {"w": torch.ones(1)})
    reply = CorrectedUpdate({"w": torch.ones(1)}, {"w": torch.full((1,), 2.0)}, 1.0)
    assert Change.of(reply, sent).norm == 2.0


def test_noise_has_the_spread_it_should_have_and_falls_on_every_number() -> None:
    request = AskMixed({"w": torch.zeros(200_000)})
    change = Change.of(Mixed({"w": torch.zeros(200_000)}, 0.0, 1.0), request)
    stream = Secret.of_simulation(1, "a").stream("noise")
    noisy = change.noisy(2.5, stream).made()
    drawn = noisy.params["w"]
    assert float(drawn.std()) == pytest.approx(2.5, rel=0.01) and abs(float(drawn.mean())) < 0.03
    assert float((drawn.abs() < 2.5).float().mean()) == pytest.approx(0.6827, abs=0.005)
    assert noisy.bias != 0.0 and noisy.weight == 1.0
    assert len(torch.unique(drawn)) > 190_000


@pytest.mark.parametrize(
    ("params", "kind"), [({"w": torch.ones(2, dtype=torch.int64)}, "int64"), ({"w": torch.ones(2).bool()}, "bool")]
)
def test_what_noise_cannot_be_put_on_is_refused(params: dict[str, torch.Tensor], kind: str) -> None:
    with pytest.raises(BadInput, match=rf"ModelUpdate.params\['w'\] is of type {kind}"):
        numbers_of(ModelUpdate(params, 1.0))
    with pytest.raises(BadInput, match=r"Named.word is of type str"):
        numbers_of(Named("a", 1.0))


def test_a_model_that_diverged_is_no_model_to_clip() -> None:
    with pytest.raises(BadInput, match="ModelUpdate changes what was sent by nan: it has diverged"):
        clipped(ModelUpdate({"w": torch.tensor([math.nan])}, 1.0), TrainModel({"w": torch.zeros(1)}), 1.0)


def test_the_reply_of_nobody_changes_nothing() -> None:
    params = {"w": torch.tensor([1.5])}
    assert unchanged(TrainModel(params), Known()) == ModelUpdate(params, 1.0)
    found = unchanged(TrainCorrected(params, {"w": torch.ones(1)}), Known(params=params))
    assert isinstance(found, CorrectedUpdate) and found.variate_change["w"].tolist() == [0.0]
    assert found.params is params
    with pytest.raises(CourseFailed, match="what no Named holds as word is not known"):
        unchanged(AskNamed(), Known())

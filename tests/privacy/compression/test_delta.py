from __future__ import annotations

import pytest
import torch

from isthmus.core.errors import BadMessage
from isthmus.privacy.compression.blob import Form, Kind, write_blob
from isthmus.privacy.compression.delta import Delta
from tests.core.toys import same
from tests.privacy.compression.toys import ALL, Answer, Pair, Question, model

SPECIAL = torch.tensor([float("inf"), -0.0, 0.0, 1e-42, -1e38, float("nan")])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_both_ways_change_no_bit(dtype: torch.dtype) -> None:
    pair = Pair(Delta(**ALL))
    for seed in range(3):
        sent = Question({"w": model(seed)["w"].to(dtype), "odd": SPECIAL.roll(seed).to(dtype)})
        assert same(pair.down({"a": sent})["a"], sent) and same(pair.believed["a"], sent)
        answer = Answer({"w": model(9 + seed)["w"].to(dtype)}, {"w": model(seed)["w"].to(dtype)})
        assert same(pair.up("a", answer), answer)


def test_what_crosses_is_about_what_both_sides_know_and_packs_the_better_the_nearer_it_is() -> None:
    from isthmus.privacy.compression.entropy import packed

    sizes = []
    for by in (0.0, 1e-6, 1e-3, 1.0):
        pair = Pair(Delta())
        pair.down({"a": Question(model(0))})
        pair.up("a", Answer(model(1, near=model(0)["w"], by=by), {}))
        wire = packed(pair.wire.params["w"], "zlib", 1, always=True)
        assert wire is not None
        sizes.append(wire.numel())
    assert sizes == sorted(sizes) and sizes[0] < 100 < sizes[1] < 0.6 * 2400


def test_differences_that_end_early_or_late_are_refused() -> None:
    guard, base = Delta(), torch.zeros(4)
    draws = guard._draws_at_server("w", b"", Pair(guard).at_server())
    for size, words in ((15, "ends early"), (17, "1 bytes too many")):
        wire = write_blob(Kind.DIFFERENCE, Form.of(base), [bytes(size)])
        with pytest.raises(BadMessage, match=words):
            guard.applied(wire, base, draws)

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isthmus.core.random import derive_seed, numpy_generator, seeded, torch_generator

from .toys import quick

PARTS = (7, 3, 1, "client-0", "fit")


def first(*parts: int | str) -> float:
    return float(torch.rand(1, generator=torch_generator(*parts)))


@pytest.mark.parametrize("place", range(len(PARTS)))
def test_streams_differ_by_every_part(place: int) -> None:
    other = tuple("other" if isinstance(p, str) else p + 1 for p in PARTS)
    changed = (*PARTS[:place], other[place], *PARTS[place + 1 :])
    assert first(*changed) != first(*PARTS)
    assert numpy_generator(*changed).random() != numpy_generator(*PARTS).random()
    assert first(*PARTS) == first(*PARTS)


def test_order_number_and_type_of_the_parts_matter() -> None:
    seeds = [derive_seed(*parts) for parts in [(), (1,), ("1",), (1, 2), (2, 1), (12,), ("1", "2"), (1, ""), (True,)]]
    assert len(set(seeds)) == len(seeds)


@quick
@given(st.lists(st.one_of(st.integers(), st.text(max_size=3)), max_size=4))
def test_a_seed_fits_what_torch_and_numpy_take(parts: list[int | str]) -> None:
    assert 0 <= derive_seed(*parts) < 2**63
    torch_generator(*parts)
    numpy_generator(*parts)


def test_the_seeds_are_the_known_ones() -> None:
    """A change here makes every published number, and every run that waits to be resumed, another one."""
    assert derive_seed() == 6510301506637419378
    assert derive_seed(0, 1, 2, "client-0", "fit") == 1623769733552145342
    assert derive_seed("a") == 4130140272143641223
    assert derive_seed(1) == 7927499134100065532
    assert derive_seed("1") == 3284777160787797315


def test_the_streams_are_the_known_ones() -> None:
    drawn = torch.rand(2, generator=torch_generator(0, "x"), dtype=torch.float64)
    assert drawn.tolist() == [0.9104801805485369, 0.3728727982761165]
    assert numpy_generator(0, "x").integers(0, 2**40, 2).tolist() == [383190506972, 769202606455]
    with seeded(0, "model"):
        assert torch.randint(0, 10**9, (3,)).tolist() == [544440115, 62819801, 419786133]


def test_no_stream_depends_on_a_global_generator_or_moves_it() -> None:
    before = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index]
    drawn = first(*PARTS), numpy_generator(*PARTS).random()
    torch.manual_seed(1)
    assert (first(*PARTS), numpy_generator(*PARTS).random()) == drawn
    torch.set_rng_state(before[0])
    assert random.getstate() == before[1]
    assert np.random.get_state()[1].tolist() == before[2]  # type: ignore[index]


def test_seeded_library_code_does_not_see_the_global_state_and_leaves_it_as_it_was() -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    with seeded(1, "model"):
        inside = torch.rand(3)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(6)
    with seeded(1, "model"):
        assert torch.equal(torch.rand(3), inside)
    with seeded(2, "model"):
        assert not torch.equal(torch.rand(3), inside)


def test_seeded_restores_the_state_after_an_error() -> None:
    state = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="oh"), seeded(1):
        torch.rand(1)
        raise RuntimeError("oh")
    assert torch.equal(torch.get_rng_state(), state)

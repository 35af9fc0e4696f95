"""Same seed, same bits; loop and strict agree to the bit: on the real default course, cut short."""

from dataclasses import replace

import pytest
import torch

import isthmus as ist
from isthmus.data.splitters import RandomSplitter
from isthmus.learn.batching import NeighborBatch
from isthmus.models import GAT, GCN, ModelSpec

SHORT = ist.Course(rounds=3)
COURSES = {
    "default": SHORT,
    "local": replace(SHORT, algorithm=ist.Local(optimizer=ist.SGD(lr=0.1, momentum=0.9))),
    "fedopt adam": replace(SHORT, algorithm=ist.FedOpt(server="adam", server_lr=0.01)),
    "neighbours, overlap, batch norm": replace(
        SHORT,
        batching=NeighborBatch(batch_size=64, fanouts=(5, 5)),
        splitter=RandomSplitter(overlap_fraction=0.1),
        model=ModelSpec(gnn=GCN(hidden=16, batch_norm=True)),
    ),
    "gat, some clients": replace(
        SHORT,
        num_clients=4,
        model=ModelSpec(gnn=GAT(hidden=8, heads=2)),
        sampling=type(SHORT.sampling)(fraction=0.5),
    ),
}
# Conformance has both in the default set, on toy clients.
NAMES = [pytest.param(n, marks=pytest.mark.slow) if n in ("local", "fedopt adam") else n for n in COURSES]


def bits(result: ist.Result) -> dict[str, torch.Tensor]:
    own = {f"{c}/{n}": t for c, params in result.client_params.items() for n, t in params.items()}
    return {**result.params, **own}


def same(one: ist.Result, two: ist.Result) -> bool:
    first, second = bits(one), bits(two)
    assert first.keys() == second.keys() and first
    return all(torch.equal(first[name], second[name]) for name in first) and one.metrics == two.metrics


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_bits_and_another_seed_others(name: str) -> None:
    course = COURSES[name]
    first = ist.run(course)
    torch.manual_seed(123)  # the global generator plays no part
    torch.rand(5)
    assert same(first, ist.run(course))
    assert not same(first, ist.run(replace(course, seed=1)))


@pytest.mark.parametrize("name", NAMES)
def test_loop_and_strict_agree_to_the_bit(name: str) -> None:
    course = COURSES[name]
    loop, strict = (ist.run(replace(course, runtime=runtime)) for runtime in ("loop", "strict"))
    assert same(loop, strict)
    traffic = [
        [(e["request"], e["bytes_up"], e["bytes_down"]) for e in r.events if e["event"] == "exchange"]
        for r in (loop, strict)
    ]
    assert traffic[0] == traffic[1]


def test_a_course_leaves_torch_s_global_generator_alone() -> None:
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    ist.run(SHORT)
    assert torch.equal(before, torch.random.get_rng_state())

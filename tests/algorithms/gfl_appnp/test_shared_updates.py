"""Local updates with what neighbours amount to: which samples a step draws, and where it leads, by hand."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isthmus.algorithms.gfl_appnp.hosted import Hosted
from isthmus.algorithms.gfl_appnp.shared_updates import Received, Step, batches_per_epoch, steps_of, train
from isthmus.core.record import Params
from isthmus.learn.optimizers import SGD
from isthmus.models.inputs import GraphInput


def samples(counts: list[int], train: list[int], seed: int = 0) -> Hosted:
    """Nodes with so many rows each, of which some are trained on; three classes."""
    draw = torch.Generator().manual_seed(seed)
    owner = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    labels = torch.randint(3, (len(train),), generator=draw)
    return Hosted(torch.randn(len(owner), 4, generator=draw), owner, torch.tensor(counts), torch.tensor(train), labels)


def drawn(hosted: Hosted, batch_size: int | None, num_steps: int, seed: int = 5) -> list[Step]:
    return list(islice(steps_of(hosted, batch_size, torch.Generator().manual_seed(seed)), num_steps))


def counted(step: Step) -> list[int]:
    """The rows whose loss counts in a step."""
    rows: list[int] = step.rows[step.batch].tolist()
    return rows


TRAIN = [1, 2, 4, 5, 7, 8, 9]
ONE, MANY = samples([10], TRAIN), samples([3, 1, 6], TRAIN)


@pytest.mark.parametrize("hosted", [ONE, MANY], ids=["one node", "three nodes"])
def test_an_epoch_shows_every_training_sample_once_in_batches_of_the_size_and_a_rest(hosted: Hosted) -> None:
    assert batches_per_epoch(hosted, 3) == 3
    steps = drawn(hosted, 3, 12)
    assert [len(step.batch) for step in steps] == [3, 3, 1] * 4
    epochs = [[row for step in steps[i : i + 3] for row in counted(step)] for i in range(0, 12, 3)]
    assert all(sorted(epoch) == TRAIN for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4  # a new order every time
    assert TRAIN not in epochs


@pytest.mark.parametrize("hosted", [ONE, MANY], ids=["one node", "three nodes"])
def test_labels_come_with_their_samples(hosted: Hosted) -> None:
    known = dict(zip(TRAIN, hosted.labels.tolist(), strict=True))
    for step in drawn(hosted, 2, 8):
        assert [known[row] for row in counted(step)] == step.labels.tolist()


def test_the_encoder_runs_on_the_batch_alone_unless_nodes_mix() -> None:
    assert all(step.rows.tolist() == counted(step) for step in drawn(ONE, 2, 4))
    assert all(step.rows.tolist() == list(range(10)) for step in drawn(MANY, 2, 4))


@pytest.mark.parametrize("batch_size", [None, 7, 100])
def test_a_batch_that_holds_everything_keeps_the_order_and_draws_nothing(batch_size: int | None) -> None:
    generator = torch.Generator().manual_seed(5)
    before = generator.get_state()
    for step in islice(steps_of(ONE, batch_size, generator), 3):
        assert counted(step) == TRAIN
    assert torch.equal(generator.get_state(), before)
    assert batches_per_epoch(ONE, batch_size) == 1


def test_the_order_is_the_generators() -> None:
    first, again, other = (drawn(ONE, 3, 3, seed) for seed in (1, 1, 2))
    assert [counted(step) for step in first] == [counted(step) for step in again]
    assert [counted(step) for step in first] != [counted(step) for step in other]
    expected = torch.tensor(TRAIN)[torch.randperm(7, generator=torch.Generator().manual_seed(1))]
    assert [row for step in first for row in counted(step)] == expected.tolist()


def test_without_training_samples_there_is_no_step() -> None:
    nothing = Hosted(ONE.x, ONE.owner, ONE.counts, torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))
    assert drawn(nothing, 2, 3) == [] and batches_per_epoch(nothing, 2) == 0 and batches_per_epoch(nothing, None) == 0


# ---- where a step leads


class Linear(nn.Module):
    """h = x W."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 3))

    def forward(self, graph: GraphInput, generator: torch.Generator | None) -> Tensor:
        assert isinstance(graph.x, Tensor)
        return graph.x @ self.weight


def by_hand(weight: Tensor, hosted: Hosted, received: Received, rows: list[int], labels: list[int]) -> Tensor:
    """g of eq. 15b, sample by sample: (y^ - y) times the Jacobian of z, with the neighbours' part of it."""
    assert isinstance(hosted.x, Tensor)
    nodes = [hosted.x[hosted.owner == k].mean(dim=0) for k in range(hosted.num_nodes)]
    slope = received.compensation["weight"]  # (training nodes, classes - 1, 4, 3): rows less the last one's, here 0
    total = torch.zeros(4, 3)
    for row, label in zip(rows, labels, strict=True):
        k = int(hosted.owner[row])
        own = received.own[k]
        x = own[k] * hosted.x[row] + sum(
            (own[j] * nodes[j] for j in range(hosted.num_nodes) if j != k), torch.zeros(4)
        )  # of z = x W + C
        error = (x @ weight + received.aggregate[k]).softmax(dim=0) - F.one_hot(torch.tensor(label), 3)
        total += torch.outer(x, error)
        place = hosted.train_nodes.tolist().index(k)
        total += error[0] * slope[place, 0] + error[1] * slope[place, 1]
    return total / len(rows)


@pytest.mark.parametrize("hosted", [ONE, MANY], ids=["one node", "three nodes"])
def test_updates_on_drawn_batches_are_those_of_the_equations(hosted: Hosted) -> None:
    draw = torch.Generator().manual_seed(3)
    num = hosted.num_nodes
    weight = torch.randn(4, 3, generator=draw)
    received = Received(
        torch.rand(num, num, generator=draw),
        torch.randn(num, 3, generator=draw),
        {"weight": torch.randn(len(hosted.train_nodes), 2, 4, 3, generator=draw)},
    )
    order = torch.randperm(7, generator=torch.Generator().manual_seed(5)).tolist()
    expected = weight.clone()
    for chosen in (order[:3], order[3:6], order[6:]):
        rows, labels = [TRAIN[i] for i in chosen], [int(hosted.labels[i]) for i in chosen]
        expected = expected - 0.2 * by_hand(expected, hosted, received, rows, labels)
    start: Params = {"weight": weight}
    steps = islice(steps_of(hosted, 3, torch.Generator().manual_seed(5)), 3)
    found = train(Linear(), start, hosted, received, steps, SGD(lr=0.2), 0.2, torch.Generator())
    torch.testing.assert_close(found["weight"], expected, rtol=1e-5, atol=1e-6)
    whole = train(Linear(), start, hosted, received, iter(drawn(hosted, None, 3)), SGD(lr=0.2), 0.2, torch.Generator())
    assert not torch.allclose(whole["weight"], expected, atol=1e-3)

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from isthmus.core.errors import BadInput
from isthmus.data.conventions import SPLITS
from isthmus.data.graph import Graph
from isthmus.data.zoo.csbm import (
    CSBM,
    StochasticCSBM,
    SupervisedCSBM,
    Synthetic,
    components,
    grow_balanced,
    is_connected,
)


def load(dataset: Synthetic) -> Graph:
    return dataset.load(Path("nowhere"))


@pytest.mark.parametrize("dataset", [CSBM(), StochasticCSBM()], ids=["dnc", "snc"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_training_set_is_balanced_and_connected(dataset: CSBM | StochasticCSBM, seed: int) -> None:
    graph = load(type(dataset)(graph_seed=seed))
    sizes = {split: int(graph.masks[split].sum()) for split in SPLITS}
    assert sizes == {"train": 20, "val": 20, "test": 160}
    assert int(torch.stack(list(graph.masks.values())).sum()) == graph.num_nodes == 200
    train = graph.subgraph(graph.masks["train"].nonzero().squeeze(1))
    assert torch.bincount(train.y).tolist() == [10, 10]
    assert is_connected(train.edge_index, 20)


def test_the_defaults_are_the_papers() -> None:
    assert CSBM().model == StochasticCSBM(degree=8.0).model
    assert [dataset.degree for dataset in (CSBM(), StochasticCSBM(), SupervisedCSBM())] == [8.0, 10.0, 5.0]
    assert load(CSBM()).x.shape == (200, 100)
    assert all(kind().present(Path()) for kind in (CSBM, StochasticCSBM, SupervisedCSBM))


@pytest.mark.parametrize("kind", [CSBM, StochasticCSBM, SupervisedCSBM])
def test_seeds_of_graph_and_features(kind: type[Synthetic]) -> None:
    one, again, other_x, other = (
        load(kind()),
        load(kind()),
        load(kind(feature_seed=1)),
        load(kind(graph_seed=1)),
    )
    assert torch.equal(one.x, again.x) and torch.equal(one.edge_index, again.edge_index)
    assert torch.equal(one.edge_index, other_x.edge_index) and torch.equal(one.y, other_x.y)
    assert not torch.equal(one.x, other_x.x)
    for split in one.masks:
        assert torch.equal(one.masks[split], other_x.masks[split])
    assert not torch.equal(one.edge_index, other.edge_index)


def test_snc_has_many_vectors_and_one_label() -> None:
    graph = load(StochasticCSBM(mu=2e4))
    samples = graph.attributes["samples"]
    assert samples.shape == (200, 40, 100)
    assert torch.allclose(graph.x, samples.mean(dim=1))
    # All vectors of a node lie on its class's side of one direction.
    sign = 2.0 * graph.y - 1
    direction = (graph.x * sign[:, None]).mean(dim=0)
    assert bool((torch.sign(samples @ direction) == sign[:, None]).all())
    part = graph.subgraph(torch.tensor([3, 1]))
    assert torch.equal(part.attributes["samples"], samples[[3, 1]])


def test_sc_has_labels_of_its_own_for_each_vector() -> None:
    graph = load(SupervisedCSBM(mu=5e3))
    samples, labels = graph.attributes["samples"], graph.attributes["sample_labels"]
    assert samples.shape == (50, 120, 100) and labels.shape == (50, 120)
    assert is_connected(graph.edge_index, 50) and not graph.masks
    tag = graph.attributes["tag"]
    assert torch.equal(graph.y, tag)
    for value, expected in ((0, 0.3), (1, 0.7)):
        share = float(labels[tag == value].float().mean())
        assert share == pytest.approx(expected, abs=5 * (0.21 / (120 * int((tag == value).sum()))) ** 0.5)
    direction = (samples * (2.0 * labels - 1)[..., None]).mean(dim=(0, 1))
    assert bool(((samples @ direction > 0) == (labels == 1)).all()), "a vector follows its own label"
    split = graph.attributes["sample_split"]
    assert [int((split[0] == number).sum()) for number in range(3)] == [10, 10, 100]
    assert torch.allclose(graph.x, samples[:, :10].mean(dim=1))
    assert graph.attribute_names["sample_split"] == SPLITS


def test_a_graph_that_cannot_be_connected_is_told() -> None:
    with pytest.raises(BadInput, match=r"200 graphs drawn by SupervisedCSBM\(.*none is connected; raise degree"):
        load(SupervisedCSBM(num_nodes=20, degree=0.2, lam=0.0, num_samples=21))
    with pytest.raises(BadInput, match="none is seen to have 10 nodes of each class"):
        load(CSBM(degree=0.5, lam=0.0))


def test_growing_and_components() -> None:
    path = torch.tensor([[0, 1, 1, 2, 3, 4], [1, 0, 2, 1, 4, 3]])  # 0 - 1 - 2, 3 - 4, 5
    assert components(path, 6).tolist() == [0, 0, 0, 1, 1, 2]
    assert not is_connected(path, 6) and is_connected(path[:, :4], 3)
    v = np.array([1, 1, -1, 1, 1, -1])
    rng = np.random.default_rng(0)
    for _ in range(5):
        grown = grow_balanced(path, v, 1, rng)
        assert grown is not None and grown.tolist() == [1, 2]
    assert grow_balanced(path, v, 2, rng) is None
    empty = grow_balanced(path, v, 0, rng)
    assert empty is not None and len(empty) == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CSBM(lam=5.0), "lam is 5.0"),
        (lambda: CSBM(train_fraction=0.6, val_fraction=0.5), "at most 1 together"),
        (lambda: StochasticCSBM(num_samples=0), "num_samples is 0"),
        (lambda: SupervisedCSBM(num_train=100, num_val=21), "num_train is 100 and num_val 21 of 120 samples"),
        (lambda: SupervisedCSBM(label_probability=1.2), "label_probability is 1.2"),
    ],
)
def test_bad_fields_are_refused(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


def test_a_million_edges_take_seconds() -> None:
    graph = load(CSBM(num_nodes=100_000, degree=20.0, num_features=4))
    assert graph.num_edges > 1.9e6

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from isthmus.data.survey.statistics import edge_homophily
from isthmus.data.zoo.block_model import FedcSBM


def test_clients_differ_by_homophily_as_the_formula_says() -> None:
    dataset = FedcSBM(num_nodes=8000, num_features=1000, phis=(0.1, 0.4, 0.8))
    graph = dataset.load(Path())
    client = graph.attributes["client"]
    assert torch.bincount(client).tolist() == [8000] * 3
    assert graph.attribute_names["client"] == ("phi=0.1", "phi=0.4", "phi=0.8")
    assert torch.equal(client[graph.edge_index[0]], client[graph.edge_index[1]])
    parts = graph.divide([(client == number).nonzero().squeeze(1) for number in range(3)])
    for phi, part in zip(dataset.phis, parts, strict=True):
        lam = 2.0 * math.tan(math.pi * phi / 2) / math.sqrt(8)
        assert dataset.model(phi).phi == pytest.approx(phi)
        assert edge_homophily(part) == pytest.approx((1 + lam / math.sqrt(5)) / 2, abs=0.02)
        assert part.num_edges / part.num_nodes == pytest.approx(5.0, abs=0.2)


def test_features_of_all_clients_have_one_distribution() -> None:
    graph = FedcSBM(phis=(0.02, 0.3), num_nodes=4000, num_features=20, mu=400.0, degree=250.0).load(Path())
    sign = (2.0 * graph.y - 1)[:, None]
    means = [(graph.x * sign)[graph.attributes["client"] == number].mean(dim=0) for number in (0, 1)]
    # Both estimate sqrt(mu / N) u with noise 1 / sqrt(p N).
    assert float((means[0] - means[1]).abs().max()) < 5 * math.sqrt(2 / (20 * 4000))
    assert float(means[0].norm()) > 0.2
    variances = [float(graph.x[graph.attributes["client"] == number].var()) for number in (0, 1)]
    assert variances[0] == pytest.approx(variances[1], rel=0.05)


def test_the_defaults_are_the_papers_eight_clients() -> None:
    graph = FedcSBM().load(Path())
    assert graph.num_nodes == 6400 and graph.num_features == 100
    assert graph.attribute_names["client"] == tuple(f"phi=0.{tenth}" for tenth in range(1, 9))
    assert torch.bincount(graph.attributes["client"]).tolist() == [800] * 8


def test_a_seed_gives_one_graph() -> None:
    one, again, other = (FedcSBM(graph_seed=seed).load(Path()) for seed in (3, 3, 4))
    assert torch.equal(one.edge_index, again.edge_index) and torch.equal(one.x, again.x)
    assert not torch.equal(one.x, other.x)
    key = one.edge_index[0] * one.num_nodes + one.edge_index[1]
    assert bool((key[1:] > key[:-1]).all())
    assert FedcSBM().present(Path())


def test_bad_fields_are_refused() -> None:
    with pytest.raises(ValueError, match="phis is empty"):
        FedcSBM(phis=())
    with pytest.raises(ValueError, match=r"phis has 1\.0; each lies between -1 and 1"):
        FedcSBM(phis=(0.1, 1.0))
    with pytest.raises(ValueError, match=r"phis has 0\.9, but lam is .*lower mu, or raise degree"):
        FedcSBM(phis=(0.1, 0.9))

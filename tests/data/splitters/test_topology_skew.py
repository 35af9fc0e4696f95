from __future__ import annotations

import pytest

from isthmus.core.errors import BadInput
from isthmus.data.splitters import InstanceSpaceSplitter, TopologySkewSplitter
from isthmus.data.survey.statistics import edge_homophily
from isthmus.testing import toy_graph

from ..strategies import rng
from .holdings import make_links, make_set


def test_clients_differ_in_degree() -> None:
    parts = TopologySkewSplitter().split(toy_graph(200), 4, rng(0))
    degrees = [part.num_edges / part.num_nodes for part in parts]
    assert degrees[-1] > 2 * degrees[0]


def test_clients_differ_in_homophily() -> None:
    parts = TopologySkewSplitter("homophily").split(toy_graph(300, homophily=0.3, num_links=6), 3, rng(0))
    first, _, last = (edge_homophily(part) for part in parts)
    assert first is not None and last is not None and last > first + 0.2


def test_graphs_go_by_size() -> None:
    sizes = [part.sizes for part in TopologySkewSplitter("size").split(make_set(30), 3, rng(0))]
    assert int(sizes[0].max()) <= int(sizes[1].min()) and int(sizes[1].max()) <= int(sizes[2].min())


def test_it_is_the_instance_space_of_a_measure() -> None:
    for data in (toy_graph(40), make_links(40), make_set(40)):
        ours = TopologySkewSplitter("degree").assign(data, 3, rng(1))
        assert [p.tolist() for p in ours] == [
            p.tolist() for p in InstanceSpaceSplitter("degree").assign(data, 3, rng(1))
        ]


def test_what_is_no_topology_is_refused() -> None:
    with pytest.raises(ValueError, match=r"by is 'degre'; known: degree, density, homophily, size. Did you mean 'degr"):
        TopologySkewSplitter("degre")
    with pytest.raises(BadInput, match=r"'size', which links do not have"):
        TopologySkewSplitter("size").split(make_links(9), 2, rng(0))

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from isthmus.data.link_graph import LinkGraph
from tests.data.strategies import dense, many, rng, seeds


def make_links(num_nodes: int, num_links: int, seed: int = 0, sparse: bool = False) -> LinkGraph:
    """Return a random multigraph, loops and repeated links included; some links have no label."""
    draw = rng(seed)
    x = torch.from_numpy(draw.random((num_nodes, 3), dtype=np.float32) * (draw.random((num_nodes, 3)) < 0.5))
    mask = torch.from_numpy(draw.random(num_links) < 0.5)
    return LinkGraph(
        x=x.to_sparse_csr() if sparse else x,
        links=torch.from_numpy(draw.integers(0, num_nodes, (2, num_links))),
        label=torch.from_numpy(draw.integers(-1, 4, num_links)),
        num_classes=4,
        node_ids=torch.from_numpy(draw.permutation(100)[:num_nodes]),
        link_ids=torch.from_numpy(draw.permutation(200)[:num_links]),
        masks={"train": mask, "val": ~mask},
        attributes={"time": torch.arange(num_links) * 10, "place": torch.from_numpy(draw.random((num_links, 2)))},
        attribute_names={"time": ("early", "late")},
        node_attributes={"side": torch.arange(num_nodes) % 2},
        class_names=("a", "b", "c", "d"),
        undirected=bool(seed % 2),
        name="toy",
    )


link_graphs = st.builds(
    make_links, num_nodes=st.integers(1, 20), num_links=st.integers(0, 50), seed=seeds, sparse=st.booleans()
)


def facts(graph: LinkGraph) -> list[dict[str, Any]]:
    """Return all that is known of each link, one by one, with nothing that depends on positions of nodes."""
    x = dense(graph.x)
    return [
        {
            "id": int(graph.link_ids[i]),
            "ends": [int(graph.node_ids[end]) for end in graph.links[:, i]],
            "x": [x[end].tolist() for end in graph.links[:, i]],
            "sides": [int(graph.node_attributes["side"][end]) for end in graph.links[:, i]],
            "label": int(graph.label[i]),
            "masks": {split: bool(mask[i]) for split, mask in graph.masks.items()},
            "attributes": {key: value[i].tolist() for key, value in graph.attributes.items()},
        }
        for i in range(graph.num_items)
    ]


@many
@given(link_graphs, seeds, st.lists(st.floats(0, 1), max_size=5))
def test_divide_keeps_all_that_is_known_of_each_link_one_by_one(
    graph: LinkGraph, seed: int, shares: list[float]
) -> None:
    draw = rng(seed)
    parts = [torch.from_numpy(draw.permutation(graph.num_items)[: round(s * graph.num_items)]) for s in shares]
    whole = facts(graph)
    divided = graph.divide(parts)
    assert [facts(part) for part in divided] == [[whole[i] for i in links.tolist()] for links in parts]
    for part in divided:
        assert part.x.layout == graph.x.layout
        assert (part.num_classes, part.class_names, part.name) == (4, graph.class_names, "toy")
        assert part.undirected == graph.undirected and part.attribute_names == graph.attribute_names


@many
@given(link_graphs, seeds)
def test_a_part_has_the_ends_of_its_links_and_no_other_node_in_their_order(graph: LinkGraph, seed: int) -> None:
    chosen = torch.from_numpy(rng(seed).permutation(graph.num_items)[: graph.num_items // 2])
    (part,) = graph.divide([chosen])
    nodes = sorted(set(graph.links[:, chosen].flatten().tolist()))
    assert part.node_ids.tolist() == graph.node_ids[torch.tensor(nodes, dtype=torch.int64)].tolist()
    assert part.num_nodes == len(nodes) == len(part.node_attributes["side"])


@many
@given(link_graphs, seeds)
def test_a_part_of_a_part_is_the_part_of_the_whole(graph: LinkGraph, seed: int) -> None:
    outer = torch.from_numpy(rng(seed).permutation(graph.num_items)[: graph.num_items // 2 + 1])
    inner = torch.arange(0, len(outer), 2)
    (once,) = graph.divide([outer[inner]])
    (twice,) = graph.divide([outer])[0].divide([inner])
    assert facts(once) == facts(twice) and once.node_ids.tolist() == twice.node_ids.tolist()


@many
@given(link_graphs, seeds)
def test_a_part_holds_no_memory_but_its_own(graph: LinkGraph, seed: int) -> None:
    for part in graph.divide(torch.from_numpy(rng(seed).permutation(graph.num_items)).tensor_split(3)):
        own = [part.links, part.label, part.node_ids, part.link_ids, *part.masks.values(), *part.attributes.values()]
        for tensor in [*own, *part.node_attributes.values()]:
            assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def test_by_hand() -> None:
    graph = LinkGraph(
        x=torch.tensor([[0.0], [1.0], [2.0], [3.0]]),
        links=torch.tensor([[0, 3, 3], [1, 0, 0]]),
        label=torch.tensor([5, 6, -1]),
        num_classes=7,
        node_ids=torch.arange(4),
        link_ids=torch.arange(3),
    )
    (part,) = graph.divide([torch.tensor([2, 1])])
    assert part.node_ids.tolist() == [0, 3] and part.x.tolist() == [[0.0], [3.0]]
    assert part.links.tolist() == [[1, 1], [0, 0]], "a pair may be linked twice"
    assert part.labels.tolist() == [-1, 6] and part.item_ids.tolist() == [2, 1]


def test_masks_can_be_set_and_are_empty_when_they_are_not() -> None:
    graph = make_links(5, 3).with_masks({"test": torch.tensor([True, False, True])})
    assert sorted(graph.masks) == ["test"]
    assert graph.mask("train").tolist() == [False] * 3 and graph.mask("test").tolist() == [True, False, True]
    assert repr(graph) == "LinkGraph(toy: 5 nodes, 3 links, 3 features, 4 classes, test=2)"

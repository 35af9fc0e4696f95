"""Small graphs of links: relations between things, and ratings of items by users."""

from __future__ import annotations

import torch

from isthmus.core.random import torch_generator
from isthmus.data.link_graph import LinkGraph


def toy_facts(
    num_nodes: int = 12, num_links: int = 40, num_relations: int = 3, *, seed: int = 0, undirected: bool = False
) -> LinkGraph:
    """Return facts between nodes of two kinds, with loops, repeated facts and pairs of several relations among them.

    Of every five links in a row three are for training, one for validation and one for test.
    """
    draw = torch_generator(seed, "facts")
    links = torch.randint(num_nodes, (2, num_links), generator=draw)
    links[:, 1] = links[0, 1]  # a loop
    links[:, 3] = links[:, 2]  # the same pair twice
    label = torch.randint(num_relations, (num_links,), generator=draw)
    turn = torch.arange(num_links) % 5
    return LinkGraph(
        x=torch.randn(num_nodes, 4, generator=draw),
        links=links,
        label=label,
        num_classes=num_relations,
        node_ids=torch.arange(num_nodes),
        link_ids=torch.arange(num_links),
        masks={"train": turn < 3, "val": turn == 3, "test": turn == 4},
        undirected=undirected,
        name="toy facts",
    )


def toy_ratings(num_users: int = 5, num_items: int = 8, num_links: int = 22, *, seed: int = 0) -> LinkGraph:
    """Return ratings from users, the first nodes, to items; the node attribute "side" tells them apart."""
    draw = torch_generator(seed, "ratings")
    user = torch.randint(num_users, (num_links,), generator=draw)
    item = torch.randint(num_items, (num_links,), generator=draw) + num_users
    turn = torch.arange(num_links) % 4
    count = num_users + num_items
    return LinkGraph(
        x=torch.randn(count, 3, generator=draw),
        links=torch.stack([user, item]),
        label=torch.randint(3, (num_links,), generator=draw),
        num_classes=3,
        node_ids=torch.arange(count),
        link_ids=torch.arange(num_links),
        masks={"train": turn < 2, "val": turn == 2, "test": turn == 3},
        node_attributes={"side": (torch.arange(count) >= num_users).long()},
        undirected=True,
        name="toy ratings",
    )


def known_pairs(data: LinkGraph, by_relation: bool, self_pairs: bool) -> set[tuple[int, int, int]]:
    """Return all (head, tail, relation) that are known, one by one."""
    found = set()
    for (head, tail), label in zip(data.links.t().tolist(), data.label.tolist(), strict=True):
        kind = label if by_relation else 0
        if by_relation and label < 0:
            continue
        found.add((head, tail, kind))
        if data.undirected:
            found.add((tail, head, kind))
    if not self_pairs:
        found |= {(n, n, r) for n in range(data.num_nodes) for r in range(data.num_classes)}
    return found

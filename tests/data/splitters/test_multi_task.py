from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isthmus.core.errors import BadInput
from isthmus.data.splitters import MultiTaskSplitter

from ..strategies import many, rng, seeds
from .holdings import make_links, make_nodes, make_set


@many
@given(st.integers(8, 40), seeds, st.integers(1, 5), st.integers(1, 5))
def test_clients_see_the_labels_of_their_own_tasks_only(num_graphs: int, seed: int, tasks: int, wish: int) -> None:
    data = make_set(num_graphs, seed, tasks)
    clients = min(wish, tasks)
    try:
        parts = MultiTaskSplitter().split(data, clients, rng(seed))
    except BadInput as refused:
        assert "without a graph" in str(refused)
        return
    for client, part in enumerate(parts):
        own = torch.zeros(tasks, dtype=torch.bool)
        own[client::clients] = True
        whole = data.y[part.graph_ids]
        assert part.y.shape == whole.shape and part.num_classes == tasks and part.class_names == data.class_names
        assert torch.equal(part.y[:, own].nan_to_num(-1.0), whole[:, own].nan_to_num(-1.0))
        assert bool(part.y[:, ~own].isnan().all())
        # Whoever has a label has one for its client.
        assert torch.equal(whole.isnan().all(dim=1), part.y.isnan().all(dim=1))


def test_graphs_are_shared_among_the_tasks_they_are_labelled_for() -> None:
    data = replace(make_set(300, tasks=3), y=torch.zeros(300, 3))
    sizes = [part.num_items for part in MultiTaskSplitter().split(data, 3, rng(0))]
    assert min(sizes) > 70


@pytest.mark.parametrize("attribute", ["task", "dataset", "domain"])
def test_an_attribute_of_a_usual_name_is_the_task(attribute: str) -> None:
    data = replace(make_nodes(12, 5), attributes={attribute: torch.arange(12) % 3})
    parts = MultiTaskSplitter().split(data, 3, rng(0))
    assert [part.node_ids.tolist() for part in parts] == [list(range(start, 12, 3)) for start in range(3)]
    assert all(torch.equal(part.y, data.y[part.node_ids]) for part in parts)


def test_more_clients_than_tasks_are_refused() -> None:
    with pytest.raises(BadInput, match=r"num_clients is 3, but 'set' has 2 tasks; use at most 2 clients"):
        MultiTaskSplitter().split(make_set(30, tasks=2), 3, rng(0))
    with pytest.raises(BadInput, match=r"num_clients is 9, but the attribute 'venue'"):
        MultiTaskSplitter("venue").split(make_links(30), 9, rng(0))


def test_data_of_one_task_is_refused() -> None:
    with pytest.raises(
        BadInput, match=r"have one label each, and none of the attributes task, dataset, domain; .*venue"
    ):
        MultiTaskSplitter().split(make_set(9), 3, rng(0))

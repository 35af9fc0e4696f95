from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isthmus.core.errors import BadInput
from isthmus.data.splitters import CrossDomainSplitter, MetaSplitter

from ..strategies import many, rng, seeds
from .holdings import make_set


@many
@given(st.lists(st.integers(0, 4), min_size=1, max_size=40), seeds, st.integers(1, 40))
def test_every_client_has_one_domain_where_there_are_enough(domains: list[int], seed: int, wish: int) -> None:
    data = replace(make_set(len(domains)), attributes={"dataset": torch.tensor(domains)})
    num_domains = len(set(domains))
    clients = min(wish, len(domains))
    parts = CrossDomainSplitter().split(data, clients, rng(seed))
    held = [set(part.attributes["dataset"].tolist()) for part in parts]
    if clients < num_domains:
        meta = MetaSplitter("dataset").split(data, clients, rng(seed))
        assert [part.graph_ids.tolist() for part in parts] == [part.graph_ids.tolist() for part in meta]
        return
    assert all(len(values) == 1 for values in held)
    for domain in set(domains):
        sizes = [part.num_items for part, values in zip(parts, held, strict=True) if values == {domain}]
        assert max(sizes) - min(sizes) <= 1


def test_large_domains_get_more_clients() -> None:
    data = replace(make_set(100), attributes={"dataset": torch.tensor([0] * 70 + [1] * 20 + [2] * 10)})
    parts = CrossDomainSplitter().split(data, 10, rng(0))
    assert np.bincount([int(part.attributes["dataset"][0]) for part in parts]).tolist() == [7, 2, 1]


def test_without_the_attribute_it_says_what_there_is() -> None:
    with pytest.raises(
        BadInput, match=r"splitter.attribute is 'dataset', which no graph of 'set' has; known: place, v"
    ):
        CrossDomainSplitter().split(make_set(5), 2, rng(0))

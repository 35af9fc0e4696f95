"""Buckets of ids as features."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from isthmus.core.errors import BadInput
from isthmus.data.zoo import DATASETS, Cora
from isthmus.data.zoo.cross_scenario import CSR
from isthmus.data.zoo.knowledge_graphs import WN18
from isthmus.data.zoo.links_of import HashedIds, mixed_bits

SMALL = CSR(num_users=300, num_items=200, num_interactions=800)


def plain_bits(number: int, seed: int) -> int:
    mask = 2**64 - 1
    z = (number * 0x9E3779B97F4A7C15 + (seed + 1) * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def test_the_hash_is_that_of_splitmix() -> None:
    numbers = [0, 1, 2, 105_113, 2**40]
    for seed in (0, 3):
        assert mixed_bits(np.array(numbers), seed).tolist() == [plain_bits(n, seed) for n in numbers]
    assert plain_bits(0, 0) == 0xE220A8397B1DCDAF  # the generator's first number from the seed 0


def test_every_node_has_one_column_of_its_side() -> None:
    data = HashedIds(dataset=SMALL, user_buckets=16, item_buckets=40).load(Path())
    plain = SMALL.load(Path())
    assert data.x.layout == torch.sparse_csr and data.x.shape == (plain.num_nodes, 56)
    x = data.x.to_dense()
    assert torch.equal(x.sum(dim=1), torch.ones(len(x))) and set(x.unique().tolist()) == {0.0, 1.0}
    column = x.argmax(dim=1)
    for node in range(0, len(x), 7):
        item = int(plain.node_attributes["side"][node]) == 1
        expected = 16 + plain_bits(node, 0) % 40 if item else plain_bits(node, 0) % 16
        assert int(column[node]) == expected
    assert torch.equal(data.links, plain.links) and torch.equal(data.label, plain.label)
    part = data.divide([torch.arange(50)])[0]
    assert torch.equal(part.x.to_dense(), x[part.node_ids])


def test_buckets_are_filled_evenly_and_another_seed_deals_anew() -> None:
    column = HashedIds(dataset=SMALL, user_buckets=8, item_buckets=8).load(Path()).x.to_dense().argmax(dim=1)
    other = HashedIds(dataset=SMALL, user_buckets=8, item_buckets=8, seed=1).load(Path()).x.to_dense().argmax(dim=1)
    counts = torch.bincount(column, minlength=16).float()
    for side in (counts[:8], counts[8:]):
        expected = side.sum() / 8
        assert float((side - expected).square().sum() / expected) < 24.3  # chi square, 7 degrees, 0.1 %
    assert float((column == other).float().mean()) < 0.25


def test_it_is_in_the_table_and_bad_input_is_named() -> None:
    assert (
        DATASETS["hashed_ids"] is HashedIds
        and HashedIds().present(Path())
        and repr(HashedIds()) != repr(HashedIds(seed=1))
    )
    with pytest.raises(ValueError, match="item_buckets is 0; it must be at least 1"):
        HashedIds(item_buckets=0)
    with pytest.raises(BadInput, match=r"'cora', whose nodes are no users and items.*ciao, epinions, csr"):
        HashedIds(dataset=Cora()).load(Path())
    assert not HashedIds(dataset=WN18()).present(Path("/nowhere"))

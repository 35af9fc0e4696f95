from __future__ import annotations

import pytest
import torch

from isthmus.data.zoo import words as module
from isthmus.data.zoo.words import bag_of_words, categories

TEXTS = [(0, "The cat, the CAT and a dog."), (2, "Dog bites cat; zebra looks"), (0, "apple"), (3, "of the"), (2, "dog")]


def test_the_words_of_most_rows_come_first_without_stop_words() -> None:
    x, words = bag_of_words(TEXTS, 4, 4)
    assert words == ("cat", "dog", "apple", "bites"), "equal ones in alphabetical order"
    assert x.layout == torch.sparse_csr
    assert x.to_dense().tolist() == [[1, 1, 1, 0], [0, 0, 0, 0], [1, 1, 0, 1], [0, 0, 0, 0]]


@pytest.mark.parametrize("block", [1, 3, 10**6])
def test_counts_add_up_over_texts_and_blocks(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK_WORDS", block)
    x, words = bag_of_words(TEXTS, 4, 2, binary=False)
    assert words == ("cat", "dog")
    assert x.to_dense().tolist() == [[2, 1], [0, 0], [1, 2], [0, 0]]


def test_no_texts_have_no_words() -> None:
    x, words = bag_of_words([], 3, 10)
    assert x.shape == (3, 0) and words == ()


def test_categories_are_numbered_by_name() -> None:
    number, names = categories(["b", "a", "b"])
    assert number.tolist() == [1, 0, 1] and number.dtype == torch.int64 and names == ("a", "b")

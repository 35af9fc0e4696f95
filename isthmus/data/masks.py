"""Who is trained on and who is held out: train, validation and test masks over the labelled items."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from isthmus.core.errors import BadInput, refuse
from isthmus.data.conventions import SPLITS
from isthmus.data.holding import Holding

Held = TypeVar("Held", bound=Holding)


@dataclass(frozen=True)
class MaskRule(ABC):
    """A rule that gives data its masks; only items (nodes, links, graphs) with a label get into one.

    An item of several tasks has a label when it has one for any of them.
    """

    @abstractmethod
    def apply(self, data: Held, rng: np.random.Generator) -> Held:
        """Return the data with masks by this rule."""


@dataclass(frozen=True)
class PublicSplit(MaskRule):
    """Keep the masks that the dataset brings."""

    def apply(self, data: Held, rng: np.random.Generator) -> Held:
        """Return the data as it is."""
        if "train" not in data.masks:
            raise BadInput(
                f"masks 'public': the dataset {data.name!r} has no split of its own (masks found: "
                f"{sorted(data.masks)}); use 'ratio' or 'per_class', or 'none' where there are no labels"
            )
        return data


@dataclass(frozen=True)
class RatioSplit(MaskRule):
    """Draw shares of the labelled items at random, without overlap.

    Of n labelled items in random order, train ends at round(n * train), validation at
    round(n * (train + val)), test at round(n * (train + val + test)).
    """

    train: float = 0.6
    val: float = 0.2
    test: float = 0.2

    def __post_init__(self) -> None:
        for split in SPLITS:
            share = getattr(self, split)
            if not 0.0 <= share <= 1.0:
                raise ValueError(f"{split} is {share!r}; a share lies between 0 and 1")
        total = self.train + self.val + self.test
        if total > 1.0 + 1e-9:
            raise ValueError(
                f"train + val + test is {self.train!r} + {self.val!r} + {self.test!r} = {total:g}; "
                "the shares may add up to 1 at most"
            )

    def apply(self, data: Held, rng: np.random.Generator) -> Held:
        """Return the data with random masks of the given shares."""
        items = rng.permutation(_labelled(data, "ratio"))
        ends = [round(len(items) * share) for share in np.cumsum([self.train, self.val, self.test])]
        return data.with_masks(
            {
                "train": _mask(data, items[: ends[0]]),
                "val": _mask(data, items[ends[0] : ends[1]]),
                "test": _mask(data, items[ends[1] : ends[2]]),
            }
        )


@dataclass(frozen=True)
class PerClassSplit(MaskRule):
    """Draw as many training items from every class, then validation and test items from the rest.

    Fields:
        num_per_class: training items of each class
        num_val:       validation items, drawn from what is left
        num_test:      test items, drawn from what is left then; null takes all of them
        allow_short:   whether a class with fewer items gives all it has, instead of being refused
    """

    num_per_class: int = 20
    num_val: int = 500
    num_test: int | None = 1000
    allow_short: bool = False

    def __post_init__(self) -> None:
        refuse(self.num_per_class < 1, self, "num_per_class", "at least 1 is needed")
        for field in ("num_val", "num_test"):
            refuse((getattr(self, field) or 0) < 0, self, field, "it may not be negative")

    def apply(self, data: Held, rng: np.random.Generator) -> Held:
        """Return the data with random masks of the given sizes."""
        if data.labels.dim() != 1:
            raise BadInput(
                f"masks 'per_class': the {data.item}s of the dataset {data.name!r} have labels for "
                f"{data.labels.shape[1]} tasks, not one class each; use 'ratio'"
            )
        items = rng.permutation(_labelled(data, "per_class"))
        classes = data.labels.numpy()[items]
        order = np.argsort(classes, kind="stable")  # by class, and within each in the order drawn
        start = np.searchsorted(classes[order], np.arange(data.num_classes + 1))
        by_class = [items[order[start[c] : start[c + 1]]] for c in range(data.num_classes)]
        train = np.concatenate([self._draw(data, members, c) for c, members in enumerate(by_class)])
        # In the order drawn, a class of few items would come late: its first ones are all in the training part.
        rest = rng.permutation(items[~np.isin(items, train)])
        num_test = max(len(rest) - self.num_val, 0) if self.num_test is None else self.num_test
        if len(rest) < self.num_val + num_test:
            raise BadInput(
                f"masks 'per_class': num_val + num_test is {self.num_val} + {num_test}, but beside the "
                f"{len(train)} training {data.item}s the dataset {data.name!r} has only {len(rest)} labelled "
                f"{data.item}s; lower num_val or num_test"
            )
        return data.with_masks(
            {
                "train": _mask(data, train),
                "val": _mask(data, rest[: self.num_val]),
                "test": _mask(data, rest[self.num_val : self.num_val + num_test]),
            }
        )

    def _draw(self, data: Holding, items: np.ndarray, number: int) -> np.ndarray:
        if len(items) < self.num_per_class and not self.allow_short:
            name = repr(data.class_names[number]) if data.class_names else str(number)
            raise BadInput(
                f"masks 'per_class': class {name} of the dataset {data.name!r} has {len(items)} labelled "
                f"{data.item}s; num_per_class is {self.num_per_class}: lower it, set allow_short, or use 'ratio'"
            )
        return items[: self.num_per_class]


@dataclass(frozen=True)
class NoSplit(MaskRule):
    """Leave all masks empty: nothing is learned from labels or scored by them, as where there are none."""

    def apply(self, data: Held, rng: np.random.Generator) -> Held:
        """Return the data with masks that nothing is in."""
        return without_examples(data)


def has_split(data: Holding) -> bool:
    """Return whether some item of the data is in a split already."""
    return any(bool(mask.any()) for mask in data.masks.values())


def labelled_items(data: Holding) -> np.ndarray:
    """Return the positions of the items that have a label, ascending."""
    labels = data.labels.numpy()
    known = labels >= 0 if np.issubdtype(labels.dtype, np.integer) else ~np.isnan(labels)
    return np.flatnonzero(known if known.ndim == 1 else known.any(axis=1))


def without_examples(data: Held) -> Held:
    """Return the data with masks that nothing is in."""
    return data.with_masks({split: _mask(data, np.zeros(0, dtype=np.int64)) for split in SPLITS})


def _labelled(data: Holding, rule: str) -> np.ndarray:
    if data.num_items == 0:
        raise BadInput(f"the dataset {data.name!r} has no {data.item}s, so there is nothing to learn from")
    items = labelled_items(data)
    if len(items) == 0:
        raise BadInput(
            f"masks {rule!r}: the dataset {data.name!r} has no labelled {data.item} among {data.num_items}; label "
            "some, or set masks.name=none with an algorithm that learns without labels, such as fedgrl"
        )
    return items


def _mask(data: Holding, items: np.ndarray) -> Tensor:
    mask = torch.zeros(data.num_items, dtype=torch.bool)
    mask[torch.from_numpy(items)] = True
    return mask


MASKS: dict[str, type[MaskRule]] = {
    "public": PublicSplit,
    "ratio": RatioSplit,
    "per_class": PerClassSplit,
    "none": NoSplit,
}

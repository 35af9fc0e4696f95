"""Clients whose labels are differently distributed, as in FS-G (Wang et al., 2022): prior probability shift.

Shares by a Dirichlet distribution: Yurochkin et al. (2019), Hsu, Qi and Brown (2019).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from isthmus.core.errors import BadInput, nearest, refuse
from isthmus.data.dividing import Holding, Items, Splitter, groups_of, parts_by_owner

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class LabelSpaceSplitter(Splitter):
    """Divides the items of each label among clients by shares drawn from Dirichlet(alpha, ..., alpha).

    A small alpha gives a label to few clients; a large one gives every client the label shares of the whole. Items
    without a label are divided evenly, at random.

    Labels are classes, or the values of one task: as they are, when there are at most `num_bins` different ones, else
    in bins of about equal size (quantiles).

    When a client gets fewer than `min_items`, all shares are drawn again, `max_draws` times at most.

    Fields:
        alpha:     parameter of the Dirichlet distribution
        balanced:  whether a client that has its fair share of the items already gets none of the labels that follow
                   (they come in random order), as in FedML's code, from which FS-G's is; revisions of FS-G's differ
        min_items: items that every client must have
        max_draws: how often shares are drawn before the split is refused
        num_bins:  bins for labels that are numbers
        task:      number or name of the task, where items have several
    """

    alpha: float = 0.5
    balanced: bool = True
    min_items: int = 1
    max_draws: int = 1000
    num_bins: int = 10
    task: int | str = 0

    def __post_init__(self) -> None:
        refuse(not 0.0 < self.alpha < float("inf"), self, "alpha", "it must be above 0")
        for field, least in (("min_items", 1), ("max_draws", 1), ("num_bins", 2)):
            refuse(getattr(self, field) < least, self, field, f"at least {least} is needed")

    def assign(self, data: Holding, num_clients: int, rng: np.random.Generator) -> list[Tensor]:
        """Return each client's items."""
        label = label_numbers(data, self.task, self.num_bins)
        groups = groups_of(label + 1)  # the first are those without a label
        sizes = np.array([len(items) for items in groups[1:]])
        if len(sizes) == 0:
            raise BadInput(f"splitter 'label_space': no {data.item} of {data.name!r} has a label; use 'random'")
        without = np.array([len(part) for part in np.array_split(groups[0], num_clients)])
        counts = np.vstack([without, self._counts(sizes, without, data, num_clients, rng)])
        owner = np.empty(data.num_items, dtype=np.int64)
        for items, shares in zip(groups, counts, strict=True):
            owner[rng.permutation(items)] = np.repeat(np.arange(num_clients), shares)
        return parts_by_owner(owner, num_clients)

    def _counts(
        self, sizes: Counts, without: Counts, data: Holding, num_clients: int, rng: np.random.Generator
    ) -> Counts:
        """Return how many items of each label each client gets, (labels, clients)."""
        most = 0
        if self.min_items * num_clients <= data.num_items:
            for _ in range(self.max_draws):
                counts = self._draw(sizes, num_clients, rng)
                least = int((counts.sum(axis=0) + without).min())
                if least >= self.min_items:
                    return counts
                most = max(most, least)
        raise BadInput(
            f"splitter 'label_space': with alpha {self.alpha:g}, {num_clients} clients could not all get "
            f"{self.min_items} of the {data.num_items} {data.item}s of {data.name!r} (at best {most}, in "
            f"{self.max_draws} draws); use fewer clients, a larger alpha, or a smaller min_items"
        )

    def _draw(self, sizes: Counts, num_clients: int, rng: np.random.Generator) -> Counts:
        counts = np.zeros((len(sizes), num_clients), dtype=np.int64)
        held = np.zeros(num_clients, dtype=np.int64)
        for number in rng.permutation(len(sizes)):
            shares = rng.dirichlet(np.full(num_clients, self.alpha))
            if self.balanced:
                hungry = held * num_clients < sizes.sum()
                shares = shares * hungry if (shares * hungry).sum() > 0.0 else hungry.astype(float)
            ends = np.cumsum(shares / shares.sum() * sizes[number])
            counts[number] = np.diff(np.round(ends).astype(np.int64), prepend=0)
            held += counts[number]
        return counts


def label_numbers(data: Holding, task: int | str, num_bins: int) -> Items:
    """Return a number for the label of each item, from 0 without gaps; -1 for none."""
    labels = data.labels.numpy()
    if labels.ndim == 1 and np.issubdtype(labels.dtype, np.integer):
        return _numbered(labels, labels >= 0)
    column = labels if labels.ndim == 1 else labels[:, _column(data, task)]
    known = ~np.isnan(column)
    values = np.unique(column[known])
    if len(values) > num_bins:
        edges = np.quantile(column[known], np.arange(1, num_bins) / num_bins)
        column = np.searchsorted(edges, column, side="right")
    return _numbered(column, known)


def _numbered(values: npt.NDArray[np.generic], known: npt.NDArray[np.bool_]) -> Items:
    numbers = np.full(len(values), -1, dtype=np.int64)
    numbers[known] = np.unique(values[known], return_inverse=True)[1]
    return numbers


def _column(data: Holding, task: int | str) -> int:
    names = list(data.class_names)
    if isinstance(task, str):
        if task not in names:
            raise BadInput(f"splitter.task is {task!r}, which {data.name!r} has not; {nearest(task, names)}")
        return names.index(task)
    if not 0 <= task < data.labels.shape[1]:
        raise BadInput(f"splitter.task is {task!r}, but {data.name!r} has {data.labels.shape[1]} tasks, from 0 on")
    return task

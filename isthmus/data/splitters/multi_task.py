"""Clients with tasks of their own, as in FS-G (Wang et al., 2022): toxicity here, an energy gap there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from isthmus.core.errors import BadInput
from isthmus.data.dividing import Held, Holding, Splitter, parts_by_owner
from isthmus.data.graph_set import GraphSet
from isthmus.data.splitters.facts import attributes_of
from isthmus.data.splitters.meta import MetaSplitter, groups_by

USUAL = ("task", "dataset", "domain")


@dataclass(frozen=True)
class MultiTaskSplitter(Splitter):
    """Gives each client its own task: a value of an attribute, or a column of the labels.

    By attribute: as `meta`, each value's items stay together; with as many values as clients, one each.

    By column, for labels of shape (graphs, tasks): client k of K has the tasks k, k + K, k + 2K, ..., so one each when
    there are as many. A graph goes to a random client among those with a task that it is labelled for (to any client
    when it has no label). Labels of other clients' tasks are hidden as NaN; all clients keep the columns, names and
    number of tasks of the whole, so that one model serves them, and losses and metrics see their own tasks only.

    More clients than tasks are refused.

    Fields:
        attribute: the attribute that tells an item's task; null for "task", "dataset" or "domain", the first of them
                   that there is, else the columns of the labels
    """

    attribute: str | None = None

    def assign(self, data: Holding, num_clients: int, rng: np.random.Generator) -> list[Tensor]:
        """Return each client's items."""
        by = self._attribute(data)
        if by is not None:
            deal = "one_each" if len(groups_by(data, by)) == num_clients else "balanced"
            return MetaSplitter(by, deal).assign(data, num_clients, rng)
        labelled = ~torch.isnan(data.labels).numpy()  # (items, tasks)
        num_tasks = labelled.shape[1]
        if num_clients > num_tasks:
            raise BadInput(
                f"splitter 'multi_task': num_clients is {num_clients}, but {data.name!r} has {num_tasks} tasks; use "
                f"at most {num_tasks} clients, one for each task"
            )
        fits = np.stack([labelled[:, client::num_clients].any(axis=1) for client in range(num_clients)], axis=1)
        # A graph that has a label for none goes to any client.
        free = fits | ~fits.any(axis=1, keepdims=True)
        return parts_by_owner(np.where(free, rng.random(fits.shape), -1.0).argmax(axis=1), num_clients)

    def split(self, data: Held, num_clients: int, rng: np.random.Generator) -> list[Held]:
        """Return one part for each client, with the labels of its own tasks."""
        parts = super().split(data, num_clients, rng)
        if self._attribute(data) is not None:
            return parts
        return [_with_tasks(part, slice(client, None, num_clients)) for client, part in enumerate(parts)]

    def _attribute(self, data: Holding) -> str | None:
        if self.attribute is not None:
            return self.attribute
        known = attributes_of(data)
        found = next((name for name in USUAL if name in known), None)
        if found is None and (data.labels.dim() != 2 or not isinstance(data, GraphSet)):
            raise BadInput(
                f"splitter 'multi_task': the {data.item}s of {data.name!r} have one label each, and none of the "
                f"attributes {', '.join(USUAL)}; set attribute to one of those there are: "
                f"{', '.join(sorted(known)) or 'none'}"
            )
        return found


def _with_tasks(part: Held, own: slice) -> Held:
    held = cast(GraphSet, part)
    y = torch.full_like(held.y, torch.nan)
    y[:, own] = held.y[:, own]
    return cast(Held, replace(held, y=y))

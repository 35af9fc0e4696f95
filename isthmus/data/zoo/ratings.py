"""Ciao and Epinions: ratings of products by users of two review sites (Tang, Gao and Liu, 2012)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch

from isthmus.core.errors import BadInput
from isthmus.data.features import one_hot
from isthmus.data.link_graph import LinkGraph
from isthmus.data.zoo.raw import RawDataset, read_arrays

COLUMNS = ("user", "item", "category", "rating", "helpfulness", "time")


@dataclass(frozen=True)
class Ratings(RawDataset):
    """Users and items as nodes, ratings as links from user to item, with the rating as label.

    The users come first, then the items, each in the order of their published numbers, which the node attribute
    "published_id" keeps; the node attribute "side" is 0 for users and 1 for items. Attributes of links: "category" of
    the item, for clients that are departments of a shop, "helpfulness" and "time" as published. There is no official
    split; FederatedScope-GNN draws 80, 10 and 10 % of each client's links.

    Some items are listed in several categories. The category belongs to the rating, so a split by category gives each
    client the ratings made in its own department, and such an item is a node of several clients, as are most users.

    Some users rated an item several times. Each rating is a link, unless `keep_repeated` is off: then only the last
    row of each pair stays, as in FederatedScope-GNN, and no pair can be both trained on and held out. Pairs that are
    both carry no messages (`learn/tasks/link_task.py`).

    The nodes come without features. The choices:

        constant: one column of ones, as FederatedScope-GNN does
        side:     two columns, one-hot: user or item
        none:     no column; for models that learn an embedding for each of `node_ids`

    Fields:
        features:      "constant", "side" or "none"
        keep_repeated: whether all ratings of an item by the same user stay
    """

    task = "link"
    licence = "none stated; for research, cite Tang, Gao and Liu (2012)"
    published: ClassVar[str] = (
        "www.cse.msu.edu/~tangjili/trust.html (rating_with_timestamp.mat; its columns as arrays "
        f"{', '.join(COLUMNS)} of an npz file)"
    )
    ratings: ClassVar[tuple[int, ...]]
    num_categories: ClassVar[int]

    features: Literal["constant", "side", "none"] = "constant"
    keep_repeated: bool = True

    def load(self, root: Path) -> LinkGraph:
        """Return the graph; its file is looked for in `root`."""
        (path,) = self.verified(root)
        rows = read_ratings(path, self.ratings, self.num_categories)
        if not self.keep_repeated:
            rows = _last_of_each_pair(rows)
        users, user = np.unique(rows["user"], return_inverse=True)
        items, item = np.unique(rows["item"], return_inverse=True)
        side = np.repeat([0, 1], [len(users), len(items)])
        widths = {"constant": torch.ones(len(side), 1), "side": one_hot(side[:, None], [2])}
        return LinkGraph(
            x=widths.get(self.features, torch.empty(len(side), 0)),
            links=torch.from_numpy(np.stack([user, item + len(users)])),
            label=torch.from_numpy(rows["rating"] - self.ratings[0]),
            num_classes=len(self.ratings),
            node_ids=torch.arange(len(side)),
            link_ids=torch.arange(len(user)),
            attributes={
                "category": torch.from_numpy(rows["category"] - 1),
                "helpfulness": torch.from_numpy(rows["helpfulness"]),
                "time": torch.from_numpy(rows["time"]),
            },
            attribute_names={"category": tuple(f"category {i + 1}" for i in range(self.num_categories))},
            node_attributes={
                "side": torch.from_numpy(side),
                "published_id": torch.from_numpy(np.concatenate([users, items])),
            },
            class_names=tuple(map(str, self.ratings)),
            undirected=True,
            name=self.name.lower(),
        )


class Ciao(Ratings):
    """7,375 users, 105,114 items in 28 categories, 284,086 ratings from 0 (34 of them) to 5; `time` in seconds.

    105 items' entries more than items: a few are in several categories. 1,436 ratings repeat a pair of user and item.
    """

    ratings = (0, 1, 2, 3, 4, 5)
    num_categories = 28
    needs = ("recsys/ciao/ratings.npz",)


class Epinions(Ratings):
    """22,164 users, 296,277 items in 27 categories, 922,267 ratings from 1 to 5; `time` is one of 11 periods.

    600 items' entries more than items: some are in several categories. 9,826 ratings repeat a pair of user and item.
    """

    ratings = (1, 2, 3, 4, 5)
    num_categories = 27
    needs = ("recsys/epinions/ratings.npz",)


def read_ratings(path: Path, ratings: tuple[int, ...], num_categories: int) -> dict[str, npt.NDArray[np.int64]]:
    """Return the columns of a file of ratings, int64, all of one length."""
    rows = {key: column.astype(np.int64) for key, column in read_arrays(path, COLUMNS).items()}
    lengths = {key: column.shape for key, column in rows.items()}
    if len(set(lengths.values())) > 1 or rows["user"].ndim != 1:
        raise BadInput(f"the columns of {path} should be of one length; found {lengths}")
    _check(path, rows["rating"], ratings[0], ratings[-1], "a rating")
    _check(path, rows["category"], 1, num_categories, "a category")
    return rows


def _check(path: Path, column: npt.NDArray[np.int64], low: int, high: int, what: str) -> None:
    outside = (column < low) | (column > high)
    if outside.any():
        raise BadInput(f"the file {path} has {what} of {int(column[outside][0])}; {low} to {high} are expected")


def _last_of_each_pair(rows: dict[str, Any]) -> dict[str, Any]:
    """Return the rows without those that a later one of the same user and item follows."""
    pair = rows["user"] * (rows["item"].max(initial=0) + 1) + rows["item"]
    last = len(pair) - 1 - np.unique(pair[::-1], return_index=True)[1]
    kept = np.sort(last)
    return {key: column[kept] for key, column in rows.items()}

"""Cross-scenario recommendation: a generator in the place of a log that is not public (Wang et al., 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from isthmus.core.errors import refuse
from isthmus.data.dataset import Dataset
from isthmus.data.features import normalized_rows
from isthmus.data.link_graph import LinkGraph

Numbers = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]


@dataclass(frozen=True)
class CSR(Dataset):
    """What users were shown in several scenarios of a shop (search, recommendation, ...) and what they clicked on.

    FederatedScope-GNN has such a set, CSR, from the log of an e-commerce platform, which is not published. This one is
    drawn from a model with latent factors:

        p_u ~ N(0, I / d)                        the taste of user u, the same in all scenarios
        q_i = (c_k + e_i) / sqrt(2)              item i of category k; centres c_k and e_i ~ N(0, I / d)
        A_s = (1 - shift) I + shift R_s          how tastes act in scenario s; R_s a random rotation
        click of u on i in s  ~  Bernoulli(sigmoid(sharpness * sqrt(d) * p_u A_s q_i + b_i)),  b_i ~ N(0, 0.25)

    So scenarios are related, by their users and by what A_s have in common, but differ: the same user has other
    tendencies in each. With shift 0 one model serves all scenarios; with 1 they have nothing in common. Which pairs
    are shown is drawn without repetition, users and items with Zipf-like activity and popularity.

    Links go from user to item, labelled "skip" or "click". Attributes of links: "scenario" and the item's "category",
    the two that the paper splits by. Node attributes: "side" (0 user, 1 item) and "scenario" (-1 for shared ones).
    Features of a node: whether it is a user or an item, one-hot, then its p_u or q_i plus noise.

    Fields:
        num_scenarios:        number of scenarios
        num_users:            users of each scenario
        num_items:            items of each scenario
        num_interactions:     pairs shown in each scenario, at most half of all
        shared_user_fraction: share of a scenario's users that are in all the others as well
        shared_item_fraction: share of a scenario's items that are in all the others as well
        num_categories:       categories of items, the same in all scenarios
        num_factors:          d above
        shift:                how much scenarios differ, 0 to 1
        sharpness:            how sure clicks are
        noise:                standard deviation of the noise of features, in units of theirs
        seed:                 what all is drawn from
    """

    task = "link"
    licence = "Apache-2.0, as part of isthmus: generated"

    num_scenarios: int = 3
    num_users: int = 1000
    num_items: int = 800
    num_interactions: int = 20_000
    shared_user_fraction: float = 0.5
    shared_item_fraction: float = 0.0
    num_categories: int = 8
    num_factors: int = 8
    shift: float = 0.3
    sharpness: float = 4.0
    noise: float = 0.3
    seed: int = 0

    def __post_init__(self) -> None:
        for field in ("num_scenarios", "num_users", "num_items", "num_interactions", "num_categories", "num_factors"):
            refuse(getattr(self, field) < 1, self, field, "at least 1 is needed")
        for field in ("shared_user_fraction", "shared_item_fraction", "shift"):
            refuse(not 0.0 <= getattr(self, field) <= 1.0, self, field, "it lies between 0 and 1")
        for field in ("sharpness", "noise"):
            refuse(not 0.0 <= getattr(self, field) < float("inf"), self, field, "it may not be negative or infinite")
        if 2 * self.num_interactions > self.num_users * self.num_items:
            raise ValueError(
                f"num_interactions is {self.num_interactions}; with {self.num_users} users and {self.num_items} items "
                f"a scenario can have {self.num_users * self.num_items // 2} at most, half of all pairs"
            )

    def load(self, root: Path) -> LinkGraph:
        """Return the graph; nothing is read from `root`."""
        rng = np.random.default_rng(self.seed)
        num_shared_users = round(self.shared_user_fraction * self.num_users)
        num_shared_items = round(self.shared_item_fraction * self.num_items)
        users_of = _members(self.num_scenarios, self.num_users, num_shared_users)
        items_of = _members(self.num_scenarios, self.num_items, num_shared_items)
        num_users, num_items = int(users_of.max()) + 1, int(items_of.max()) + 1
        taste = self._normal(rng, num_users)  # (users, factors)
        centre = self._normal(rng, self.num_categories)
        category = rng.integers(0, self.num_categories, num_items)
        kind = (centre[category] + self._normal(rng, len(category))) / np.sqrt(2.0)  # (items, factors)
        shown = [self._scenario(rng, users_of[s], items_of[s], taste, kind) for s in range(self.num_scenarios)]
        user, item, label = (np.concatenate(column) for column in zip(*shown, strict=True))
        x = self._features(rng, taste, kind)
        home = [_home(users_of, num_shared_users), _home(items_of, num_shared_items)]
        scenario = np.repeat(np.arange(self.num_scenarios), self.num_interactions)
        return LinkGraph(
            x=normalized_rows(torch.from_numpy(x)) if self.normalize_features else torch.from_numpy(x),
            links=torch.from_numpy(np.stack([user, item + num_users])),
            label=torch.from_numpy(label),
            num_classes=2,
            node_ids=torch.arange(len(x)),
            link_ids=torch.arange(len(label)),
            attributes={"scenario": torch.from_numpy(scenario), "category": torch.from_numpy(category[item])},
            attribute_names={
                "scenario": tuple(f"scenario {s + 1}" for s in range(self.num_scenarios)),
                "category": tuple(f"category {k + 1}" for k in range(self.num_categories)),
            },
            node_attributes={
                "side": torch.from_numpy(np.repeat([0, 1], [num_users, len(category)])),
                "scenario": torch.from_numpy(np.concatenate(home)),
            },
            class_names=("skip", "click"),
            undirected=True,
            name="csr",
        )

    def _scenario(
        self, rng: np.random.Generator, users: Numbers, items: Numbers, taste: Reals, kind: Reals
    ) -> tuple[Numbers, Numbers, Numbers]:
        """Return user, item and label of each pair that is shown in a scenario."""
        rotation = np.linalg.qr(rng.normal(size=(self.num_factors, self.num_factors)))[0]
        effect = (1 - self.shift) * np.eye(self.num_factors) + self.shift * rotation
        position, chosen = self._pairs(rng)
        user, item = users[position], items[chosen]
        appeal = rng.normal(scale=0.5, size=self.num_items)[chosen]
        affinity = np.einsum("nd,nd->n", taste[user] @ effect, kind[item]) * np.sqrt(self.num_factors)
        click = rng.random(len(user)) < 1.0 / (1.0 + np.exp(-(self.sharpness * affinity + appeal)))
        return user, item, click.astype(np.int64)

    def _pairs(self, rng: np.random.Generator) -> tuple[Numbers, Numbers]:
        """Return distinct pairs of one of the users and one of the items, in the order drawn."""
        activity, popularity = _zipf(rng, self.num_users), _zipf(rng, self.num_items)
        drawn = np.empty(0, dtype=np.int64)
        for _ in range(20):
            number = 2 * self.num_interactions
            user = rng.choice(self.num_users, number, p=activity)
            drawn = _distinct(
                np.concatenate([drawn, user * self.num_items + rng.choice(self.num_items, number, p=popularity)])
            )
            if len(drawn) >= self.num_interactions:
                break
        else:  # nearly all likely pairs are taken: fill up with any
            drawn = _distinct(np.concatenate([drawn, rng.permutation(self.num_users * self.num_items)]))
        drawn = drawn[: self.num_interactions]
        return drawn // self.num_items, drawn % self.num_items

    def _normal(self, rng: np.random.Generator, number: int) -> Reals:
        return rng.normal(scale=self.num_factors**-0.5, size=(number, self.num_factors))

    def _features(self, rng: np.random.Generator, taste: Reals, kind: Reals) -> npt.NDArray[np.float32]:
        factors = np.concatenate([taste, kind])
        side = np.repeat(np.eye(2), [len(taste), len(kind)], axis=0)
        seen = np.sqrt(self.num_factors) * factors + self.noise * rng.normal(size=factors.shape)
        return np.concatenate([side, seen], axis=1).astype(np.float32)


def _members(num_scenarios: int, number: int, num_shared: int) -> Numbers:
    """Return who is in each scenario, (scenarios, number), the shared ones first; their numbers have no gaps."""
    own = np.arange(num_scenarios * (number - num_shared)).reshape(num_scenarios, -1)
    shared = np.broadcast_to(np.arange(num_shared), (num_scenarios, num_shared))
    return np.concatenate([shared, own + num_shared], axis=1)


def _home(members: Numbers, num_shared: int) -> Numbers:
    """Return the scenario of each user or item; -1 for those that are in all."""
    home = np.full(int(members.max()) + 1, -1)
    for scenario, own in enumerate(members[:, num_shared:]):
        home[own] = scenario
    return home


def _zipf(rng: np.random.Generator, number: int) -> Reals:
    """Return shares that fall as the square root of the rank, in random order."""
    weight = rng.permutation(1.0 / np.sqrt(np.arange(1, number + 1)))
    share: Reals = weight / weight.sum()
    return share


def _distinct(numbers: Numbers) -> Numbers:
    """Return each number where it first comes."""
    return numbers[np.sort(np.unique(numbers, return_index=True)[1])]

"""Two communities with features that know of them: the contextual stochastic block model (cSBM).

Deshpande, Sen, Montanari and Mossel (2018). Node i has v_i = +1 or -1 with equal chance. Two nodes are joined with
probability c_in / N when v_i = v_j, else c_out / N:

    c_in  = d + lambda sqrt(d)
    c_out = d - lambda sqrt(d)

so d is the mean degree and (1 + lambda / sqrt(d)) / 2 the share of edges within a community. With one hidden direction
u ~ N(0, I_p / p) for all nodes and Z_i ~ N(0, I_p), the features are

    x_i = sqrt(mu / N) v_i u + Z_i / sqrt(p)

How much of what is known lies in the edges, how much in the features (Chien, Peng, Li and Milenkovic, 2021):

    phi = (2 / pi) arctan(lambda sqrt(N / p) / mu)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from isthmus.data.dataset import Dataset
from isthmus.data.features import normalized_rows
from isthmus.data.graph import Graph, undirected

Rng = np.random.Generator


@dataclass(frozen=True)
class BlockModel:
    """The five numbers of a cSBM.

    Fields:
        num_nodes:    N
        degree:       d, mean degree
        lam:          lambda, from -sqrt(d) (all edges between communities) to sqrt(d) (all within)
        mu:           strength of the features
        num_features: p
    """

    num_nodes: int
    degree: float
    lam: float
    mu: float
    num_features: int

    def __post_init__(self) -> None:
        if self.num_nodes < 2 or self.num_features < 1:
            raise ValueError(
                f"num_nodes is {self.num_nodes!r} and num_features {self.num_features!r}; they must be at least 2 and 1"
            )
        if self.degree <= 0 or self.mu < 0:
            raise ValueError(f"degree is {self.degree!r} and mu {self.mu!r}; one must be positive, one not negative")
        if abs(self.lam) > math.sqrt(self.degree):
            raise ValueError(
                f"lam is {self.lam!r}; with degree {self.degree!r} it lies between -{math.sqrt(self.degree):.4g} and "
                f"{math.sqrt(self.degree):.4g}"
            )
        if max(self.c_in, self.c_out) > self.num_nodes:
            raise ValueError(f"degree is {self.degree!r}, too much for num_nodes = {self.num_nodes!r}")

    @property
    def c_in(self) -> float:
        """N times the probability of an edge within a community."""
        return self.degree + self.lam * math.sqrt(self.degree)

    @property
    def c_out(self) -> float:
        """N times the probability of an edge between communities."""
        return self.degree - self.lam * math.sqrt(self.degree)

    @property
    def phi(self) -> float:
        """Where the information lies: 0 in the features, 1 in the edges, -1 in edges between communities."""
        return 2 / math.pi * math.atan2(self.lam * math.sqrt(self.num_nodes / self.num_features), self.mu)

    def communities(self, rng: Rng) -> np.ndarray:
        """Return v, (nodes,), of +1 and -1."""
        return 2 * rng.integers(0, 2, self.num_nodes) - 1

    def edges(self, v: np.ndarray, rng: Rng) -> Tensor:
        """Return the edges, as `Graph` has them; work and memory go by their number, not by that of the pairs."""
        plus, minus = np.flatnonzero(v > 0), np.flatnonzero(v < 0)
        ends = []
        for nodes in (plus, minus):
            low, high = _triangle(_draw(len(nodes) * (len(nodes) - 1) // 2, self.c_in / self.num_nodes, rng))
            ends.append(np.stack([nodes[low], nodes[high]]))
        pair = _draw(len(plus) * len(minus), self.c_out / self.num_nodes, rng)
        ends.append(np.stack([plus[pair // max(len(minus), 1)], minus[pair % max(len(minus), 1)]]))
        return undirected(torch.from_numpy(np.concatenate(ends, axis=1)), self.num_nodes)[0]

    def direction(self, rng: Rng) -> np.ndarray:
        """Return u, (features,)."""
        return rng.normal(0.0, 1 / math.sqrt(self.num_features), self.num_features)

    def features(self, signs: np.ndarray, u: np.ndarray, rng: Rng) -> Tensor:
        """Return x for each of the signs, (..., features), float32; `signs` is v, or has a sign for each sample."""
        noise = rng.standard_normal((*signs.shape, self.num_features), dtype=np.float32)
        noise /= math.sqrt(self.num_features)
        noise += math.sqrt(self.mu / self.num_nodes) * signs[..., None] * u
        return torch.from_numpy(noise)


def _draw(num_pairs: int, probability: float, rng: Rng) -> np.ndarray:
    """Return which of the pairs are edges, when each is one with this probability."""
    if num_pairs == 0:
        return np.empty(0, dtype=np.int64)
    return rng.choice(num_pairs, rng.binomial(num_pairs, probability), replace=False, shuffle=False).astype(np.int64)


def _triangle(number: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the pair (low, high) of each number, counted (0, 1), (0, 2), (1, 2), (0, 3), ..."""
    high = np.floor((1 + np.sqrt(1 + 8 * number.astype(np.float64))) / 2).astype(np.int64)
    high -= high * (high - 1) // 2 > number  # the root of a large number may be rounded up
    return number - high * (high - 1) // 2, high


@dataclass(frozen=True)
class FedcSBM(Dataset):
    """One contextual block model for each client (`block_model`), with one mu and one direction u for all.

    The paper gives the clients phi = 0.1, 0.2, ..., 0.8, and wants their features to have one distribution, so that
    they differ by their edges alone. With mu and N / p the same for all, phi leaves one choice of lambda:

        phi_c = (2 / pi) arctan(lambda_c sqrt(N / p) / mu)    so    lambda_c = mu tan(pi phi_c / 2) / sqrt(N / p)

    and client c has a share (1 + lambda_c / sqrt(d)) / 2 of its edges within a class. N, p, d and mu are not in the
    paper; N, p and d are those of its public code, which lets mu fall as phi rises, and mu = 2 makes phi = 0.8
    possible (lambda_c <= sqrt(d)). The graph is the disjoint union of the clients' graphs; the attribute "client"
    tells them apart. There are no masks.

    Fields:
        phis:         phi of each client
        num_nodes:    N, nodes of each client
        degree:       d, mean degree
        mu:           strength of the features
        num_features: p
        graph_seed:   seed of all that is drawn
    """

    licence = "none needed: drawn at random"

    phis: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
    num_nodes: int = 800
    degree: float = 5.0
    mu: float = 2.0
    num_features: int = 100
    graph_seed: int = 0

    def __post_init__(self) -> None:
        if not self.phis:
            raise ValueError("phis is empty; give one number for each client")
        for phi in self.phis:
            if not -1.0 < phi < 1.0:
                raise ValueError(f"phis has {phi!r}; each lies between -1 and 1")
            try:
                self.model(phi)
            except ValueError as error:
                raise ValueError(f"phis has {phi!r}, but {error}; lower mu, or raise degree") from error

    def model(self, phi: float) -> BlockModel:
        """Return the block model of a client."""
        lam = self.mu * math.tan(math.pi * phi / 2) / math.sqrt(self.num_nodes / self.num_features)
        return BlockModel(self.num_nodes, self.degree, lam, self.mu, self.num_features)

    def load(self, root: Path) -> Graph:
        """Return the union of the clients' graphs; nothing is read from `root`."""
        u = self.model(self.phis[0]).direction(np.random.default_rng([self.graph_seed, 0]))
        x, edges, labels = [], [], []
        for client, phi in enumerate(self.phis):
            rng, model = np.random.default_rng([self.graph_seed, 1, client]), self.model(phi)
            v = model.communities(rng)
            labels.append(torch.from_numpy((v + 1) // 2))
            edges.append(model.edges(v, rng) + client * self.num_nodes)
            x.append(model.features(v, u, rng))
        num_nodes = len(self.phis) * self.num_nodes
        features = torch.cat(x)
        return Graph(
            x=normalized_rows(features) if self.normalize_features else features,
            edge_index=torch.cat(edges, dim=1),
            y=torch.cat(labels),
            num_classes=2,
            node_ids=torch.arange(num_nodes),
            attributes={"client": torch.arange(num_nodes) // self.num_nodes},
            attribute_names={"client": tuple(f"phi={phi:g}" for phi in self.phis)},
            class_names=("-1", "+1"),
            name="fedcsbm",
        )

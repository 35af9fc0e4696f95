"""FedcSBM: clients whose features are alike and whose edges are not (FederatedScope-GNN, Wang et al., 2022, 4.2)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from isthmus.data.dataset import Dataset
from isthmus.data.features import normalized_rows
from isthmus.data.graph import Graph
from isthmus.data.zoo.block_model import BlockModel


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

    summary: ClassVar[str] = "synthetic: 8 clients of 800 nodes, features alike, homophily from 0.52 to 0.99"
    licence: ClassVar[str] = "none needed: drawn at random"

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

    def present(self, root: Path) -> bool:
        """Return True: there are no files."""
        return True

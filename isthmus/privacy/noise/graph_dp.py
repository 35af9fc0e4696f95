"""Differential privacy of edges, and of nodes with their edges, for node tasks. Sajadmanesh et al. (2023, 2024).

Both are promises about the network `gap` under the method `fedgap` ("GAP"), and `progap` under `fedprogap` ("ProGAP"),
which add up over each client's edges once for each hop. The noise is put on there
(`isthmus.algorithms.fedgap.noisy_sums`); here is what it promises.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from isthmus.core.errors import refuse
from isthmus.core.exposure import Exchange
from isthmus.core.guards.guard import AtServer, Guard
from isthmus.core.guards.hiding import NoisySums
from isthmus.core.protocol import Requests
from isthmus.core.record import State
from isthmus.privacy.accounting.gaussian import mu_of
from isthmus.privacy.accounting.releases import Releases
from isthmus.privacy.noise.example_dp import ExampleDP


@dataclass(frozen=True)
class EdgeDP(Guard):
    """What a client tells hardly depends on any one of its edges, towards everybody, the server and other clients too.

    Neighbours are joined or not: an undirected edge changes two rows of each hop's sums by a row of length one at most,
    which is sqrt(2) in all. With K hops and noise N(0, s^2) on each number of every hop,

        s = sqrt(2 K) / mu,    mu that of Gaussian noise with (epsilon, delta), Balle and Wang (2018)

    which is exact: the K hops are K Gaussian releases, each made of those before, and with ProGAP of what was learned
    from these. All that leaves a client afterwards
    (models of any number of rounds, and how well they do) is made of these sums, features and labels. The sums are made
    once in a course, so epsilon is spent once; another course on the same edges spends its own.

    GAP counts an edge in one direction, for which the noise is sqrt(2) less: its epsilon 4 is 6.0 here.

    What it does not hide: features, labels, which nodes there are, and edges that the features tell (they are in no
    noise); what silos say of their data beside a course (a number of edges, statistics in `isthmus data show`).

    Fields:
        epsilon: of all hops together; null puts on no noise
        delta:   the chance that epsilon does not hold; well below one over the number of edges
    """

    epsilon: float | None = 4.0
    delta: float = 1e-5

    protects: ClassVar[Mapping[str, Literal["more", "less"]]] = {"epsilon": "less", "delta": "less"}

    def __post_init__(self) -> None:
        refuse(self.epsilon is not None and not self.epsilon > 0.0, self, "epsilon", "it must be positive, or null")
        refuse(not 0.0 < self.delta < 1.0, self, "delta", "it must be between 0 and 1")

    @property
    def noisy_sums(self) -> NoisySums:
        """How clients add up over edges."""
        return NoisySums(0.0 if self.epsilon is None else 1.0 / mu_of(self.epsilon, self.delta))

    def problem(self, course: Any) -> str:
        """Return what of a course looks at edges in another way."""
        return "" if self.epsilon is None else of_sums(course)

    def shown(self, exchange: Exchange) -> Exchange:
        """Return what is seen of an exchange whose replies are made of noisy sums."""
        if self.epsilon is None or exchange.server_sees == "nothing but a receipt":
            return exchange
        return replace(exchange, wire_up=f"{exchange.wire_up}, {MADE_OF}")

    def send(self, requests: Requests, at: AtServer) -> Requests:
        """Say once how much noise there is."""
        if self.epsilon is not None and not at.memory:
            at.remember({"made": True})
            at.note(
                f"every client's sums over neighbours get noise of {self.noisy_sums.noise * math.sqrt(2.0):.3g} a hop "
                "(times the root of the hops), against rows of length one, once: what is hidden is an edge, and "
                "neither features nor labels are"
            )
        return requests

    def spent(self, memory: State) -> dict[str, float]:
        """Return epsilon: all of it, as soon as clients have made their sums."""
        return {} if self.epsilon is None else {"epsilon of edges": self.epsilon}


@dataclass(frozen=True)
class NodeDP(ExampleDP):
    """What a client tells hardly depends on any one of its nodes: features, label and edges.

    Two things together. The sums over neighbours are noisy: a node is in the sums of D = `max_degree` others at most,
    so that it changes a hop's sums by sqrt(D); noise of `sum_noise` sqrt(D K) on each of K hops makes them one Gaussian
    release of noise `sum_noise`. And the steps of training hide each training node, those of the encoder as those of
    the head, or of all stages, as with example_dp: the row of one node is in no other node's gradient, for sums have
    noise before. The account is of both. A node's own sums are read by its own example alone, and hidden with it.

    Degrees: noise is for nodes with no more than D edges, and others are refused, unless `cut`. Then each node keeps D
    of its edges, drawn at random, as those to whose sums it counts. What is promised is then about the graph that is
    left: a node takes a place among its neighbours' D, and that another one would have had this place is not hidden.

    What it does not hide: how many nodes and training examples there are, scores (unless `hide_scores`), and several
    nodes that say the same.

    Fields beside those of example_dp, which are about the steps:
        sum_noise:  noise on the sums of all hops together, as a multiple of what a node changes of them
        max_degree: D, the most edges of a node
        cut:        whether nodes with more edges keep D of them; else they are refused
    """

    sum_noise: float = 2.0
    max_degree: int = 10
    cut: bool = False

    protects: ClassVar[Mapping[str, Literal["more", "less"]]] = {
        **ExampleDP.protects,
        "sum_noise": "more",
        "cut": "less",
    }
    told_as: ClassVar[str] = "epsilon of nodes"

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(not 0.0 <= self.sum_noise < math.inf, self, "sum_noise", "it must be at least 0")
        refuse(self.max_degree < 1, self, "max_degree", "it must be at least 1")

    @property
    def noisy_sums(self) -> NoisySums:
        """How clients add up over edges."""
        return NoisySums(self.sum_noise, self.max_degree, self.cut)

    def releases(self, answers: int) -> Sequence[Releases]:
        """Return what so many answers of a client tell, and its sums once, for the account."""
        return [*super().releases(answers), Releases(self.sum_noise)]

    def of_model(self, course: Any) -> str:
        """Return what of a course looks at edges in another way."""
        return of_sums(course)

    @property
    def of_what(self) -> str:
        """What replies are made of, in words."""
        return f"{super().of_what} on noisy sums over neighbours"


MADE_OF = "made of noisy sums over neighbours"


def of_sums(course: Any) -> str:
    """Return why a course may look at edges in another way than by sums that are made once; empty if it does not."""
    algorithm, gnn = course.algorithm, getattr(course.model, "gnn", None)
    network: str = vars(type(algorithm)).get("sums_once", "")
    if not network:
        return f"{type(algorithm).__name__} looks at edges in every round; set algorithm.name=fedgap, or fedprogap"
    if type(gnn).__name__ != network:
        return (
            f"the network {type(gnn).__name__} has no sums that could be made once by {type(algorithm).__name__}; set "
            f"model.gnn.name={network.lower()}"
        )
    others = [part for part in ("encoder", "decoder", "readout") if getattr(course.model, part, None) is not None]
    if others:
        return f"model.{others[0]} is set, and the network {network.lower()} has all parts of its own; set it to null"
    if type(course.batching).__name__ != "FullBatch":
        return "batches with sampled neighbours read edges in every step; leave batching.name at full"
    if course.task.data_type.item != "node":
        return f"the examples are {course.task.data_type.item}s, and it hides what joins nodes; use a task on nodes"
    return ""

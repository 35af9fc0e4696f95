"""What a section is, and the courses that several attack."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import isthmus as ist
from isthmus.attacks import Attack
from isthmus.attacks.audit.running import Carried
from isthmus.attacks.audit.spec import Guards
from isthmus.data.dataset import Dataset
from isthmus.data.dividing import RatioSplit
from isthmus.data.zoo.cora import Cora
from isthmus.data.zoo.planetoid import CiteSeer
from isthmus.learn.optimizers import SGD
from isthmus.report.summary import Table
from isthmus.runs.simulation import Scenario, load_scenario

DATASETS: dict[str, Dataset] = {"cora": Cora(), "citeseer": CiteSeer()}
CLIENTS = (5, 50)


@dataclass(frozen=True)
class Section:
    """What is attacked, how, and under which guards.

    Fields:
        course:  makes a course of a dataset and a number of clients
        attacks: what is tried
        lines:   lists of guards; the first is what others are compared with
        layout:  another table beside the usual one, if there is one
        load:    says who holds what, where that is not what the course says
    """

    what: str
    course: Callable[..., ist.Course]
    attacks: tuple[Attack, ...]
    lines: tuple[Guards, ...]
    datasets: Mapping[str, Dataset] = field(default_factory=lambda: DATASETS)
    clients: tuple[int, ...] = CLIENTS
    layout: Callable[[Carried], Table] | None = None
    load: Callable[[ist.Course, Path], Scenario] = load_scenario


def four_steps(**fields: object) -> ist.Course:
    """Return FedAvg as it is by default."""
    return ist.Course(rounds=100, evaluate_every=10, **fields)


def one_step(**fields: object) -> ist.Course:
    """Return FedAvg with one step of plain SGD a round, for attacks that read the first round alone."""
    return ist.Course(rounds=2, algorithm=ist.FedAvg(local_steps=1, optimizer=SGD(lr=0.25)), **fields)


HALF = RatioSplit(train=0.5, val=0.1, test=0.4)


def half(**fields: object) -> ist.Course:
    """Return FedAvg where half of the nodes are trained on."""
    return ist.Course(rounds=100, evaluate_every=100, masks=HALF, **fields)


# What learns from graphs needs beside its dataset, as a command line has it.
OF_GRAPHS = (
    "dataset.name=proteins",
    "splitter.name=random",
    "task.name=graph_classification",
    "model.gnn.name=gin",
    "model.readout.name=mean",
    "model.decoder.name=linear",
)

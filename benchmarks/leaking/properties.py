"""What updates say that no task is about, and whose a word is under a sum."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import isthmus as ist
from isthmus.attacks import LabelShares, PropertyInference, WordsOfOne
from isthmus.config.load import load_course
from isthmus.core.random import UniformSampling
from isthmus.data.zoo.cora import Cora
from isthmus.data.zoo.tu import PROTEINS
from isthmus.learn.optimizers import SGD
from isthmus.privacy import SecureSum
from leaking.section import OF_GRAPHS, Section

# The classifier and its settings are those that were written first; none was chosen by a score.
OF_NODES = tuple(PropertyInference(which=which) for which in ("homophily", "degree", "minority"))


def few_rounds(**fields: object) -> ist.Course:
    """Return FedAvg as it is by default, for as many rounds as updates are looked at."""
    return ist.Course(rounds=2, evaluate_every=2, **fields)


def of_graphs(**fields: Any) -> ist.Course:
    """Return GCFL+ on graphs: the server looks at each client's updates."""
    words = [*OF_GRAPHS, "algorithm.name=gcfl_plus", "algorithm.optimizer.lr=0.01", "rounds=5", "evaluate_every=5"]
    return replace(load_course(None, words, say=lambda text: None), **fields)


def some_of_many(**fields: object) -> ist.Course:
    """Return FedAvg of plain SGD without decay, where a fifth of the clients takes part in a round."""
    algorithm = ist.FedAvg(optimizer=SGD(lr=0.25, weight_decay=0.0))
    sampling = UniformSampling(0.2)
    return ist.Course(rounds=50, evaluate_every=50, algorithm=algorithm, sampling=sampling, **fields)


def all_of_few(**fields: object) -> ist.Course:
    """Return FedAvg of plain SGD without decay, where everybody takes part in every round."""
    algorithm = ist.FedAvg(optimizer=SGD(lr=0.25, weight_decay=0.0))
    return ist.Course(rounds=50, evaluate_every=50, algorithm=algorithm, **fields)


SUMS = ((SecureSum(),), (SecureSum(min_holders=2),))
SECTIONS = {
    "properties": Section(
        "FedAvg, four steps: two updates of each client, and clients of other divisions to learn from",
        few_rounds,
        OF_NODES,
        ((),),
        {"cora": Cora()},
        (50, 5),
    ),
    "graph_properties": Section(
        "GCFL+ on graphs: updates of each client",
        of_graphs,
        (PropertyInference(which="degree"), PropertyInference(which="minority"), LabelShares()),
        ((),),
        {"proteins": PROTEINS()},
        (10,),
    ),
    "alone": Section(
        "FedAvg under secure sums, ten of fifty clients in a round, no weight decay",
        some_of_many,
        (WordsOfOne(),),
        ((), *SUMS),
        clients=(50,),
    ),
    "alone_all": Section(
        "FedAvg under secure sums, all five clients in every round, no weight decay",
        all_of_few,
        (WordsOfOne(),),
        SUMS,
        clients=(5,),
    ),
}

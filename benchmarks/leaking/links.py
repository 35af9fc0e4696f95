"""Which nodes are connected, by what clients tell of each node."""

from __future__ import annotations

import isthmus as ist
from isthmus.algorithms import FedGL
from isthmus.attacks import LinkInfluence, LinksFromModel, LinksFromRows
from isthmus.privacy import RowNoise
from leaking.section import Section, four_steps


def fedgl(**fields: object) -> ist.Course:
    """Return FedGL as it is by default."""
    return ist.Course(rounds=100, evaluate_every=10, algorithm=FedGL(), **fields)


SECTIONS = {
    "model_links": Section("FedAvg: the model that everybody has", four_steps, (LinksFromModel(),), ((),)),
    "influence": Section(
        "FedAvg: a client answers questions about its graph with changed features",
        four_steps,
        (LinkInfluence(),),
        ((),),
        clients=(50,),
    ),
    "links": Section("FedGL: predictions and embeddings", fedgl, (LinksFromRows(),), ((), (RowNoise(noise=1.0),))),
}

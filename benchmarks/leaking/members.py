"""Who was trained on, by the model that all have at the end."""

from __future__ import annotations

from guarding.dp import HEAD, node_dp_within

import isthmus as ist
from isthmus.algorithms import FedGAP
from isthmus.attacks import Lira, LossThreshold
from isthmus.learn.optimizers import Adam
from leaking.section import HALF, Section, half


def gap(**fields: object) -> ist.Course:
    """Return GAP where half of the nodes are trained on, one step a round."""
    algorithm = FedGAP(encoder_rounds=30, local_steps=1, optimizer=Adam(lr=0.02), weighting="uniform")
    return ist.Course(rounds=30, evaluate_every=30, masks=HALF, algorithm=algorithm, model=HEAD, **fields)


# No setting of an attack was chosen by its score here, but for the number of shadows: as many as an hour allows.
MEMBERS = (LossThreshold(), Lira(shadows=64))
SECTIONS = {
    "members": Section("FedAvg, half of the nodes trained on", half, MEMBERS, ((),)),
    "members_gap": Section("GAP, half of the nodes trained on", gap, MEMBERS, ((), (node_dp_within(8.0),))),
}

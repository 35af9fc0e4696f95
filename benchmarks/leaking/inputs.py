"""What the server reads off updates and gradients of single clients."""

from __future__ import annotations

import isthmus as ist
from isthmus.attacks import FeatureSpan, LabelShares, Vocabulary
from isthmus.privacy import ClientDP, Quantise, SecureSum
from leaking.section import Section, four_steps, one_step


def alike(**fields: object) -> ist.Course:
    """Return FedAvg in which each client counts as one, as noise on clients wants it."""
    return ist.Course(rounds=100, evaluate_every=10, algorithm=ist.FedAvg(weighting="uniform"), **fields)


SECTIONS = {
    "words": Section(
        "FedAvg, four steps: one update of each client",
        four_steps,
        (Vocabulary(), LabelShares()),
        ((), (Quantise(bits=8),), (SecureSum(),)),
    ),
    "step": Section(
        "FedAvg, one step: one gradient of each client",
        one_step,
        (LabelShares(), FeatureSpan()),
        ((), (Quantise(bits=8),), (SecureSum(),)),
    ),
    "noise": Section(
        "FedAvg, four steps, noise on whole clients that each adds itself",
        alike,
        (Vocabulary(),),
        ((), (ClientDP(clip=0.1, noise=1.0, mode="local"),)),
    ),
}

"""What the server reads off updates and gradients of single clients."""

from __future__ import annotations

import isthmus as ist
from isthmus.attacks import (
    ClassGenerator,
    ClassInversion,
    EdgesByMatching,
    FeaturesByMatching,
    FeatureSpan,
    LabelShares,
    Vocabulary,
)
from isthmus.learn.optimizers import SGD
from isthmus.models import GCN, LinearEncoder, ModelSpec
from isthmus.privacy import ClientDP, Quantise, SecureSum
from leaking.section import Section, one_step


def first_rounds(**fields: object) -> ist.Course:
    """Return the first rounds of FedAvg as it is by default: its attacks look at the first alone."""
    return ist.Course(rounds=2, evaluate_every=2, **fields)


def alike(**fields: object) -> ist.Course:
    """Return the same in which each client counts as one, as noise on clients wants it."""
    return ist.Course(rounds=2, evaluate_every=2, algorithm=ist.FedAvg(weighting="uniform"), **fields)


def linear(**fields: object) -> ist.Course:
    """Return one step of plain SGD behind a linear encoder, each client counting as one, as noise wants it."""
    algorithm = ist.FedAvg(local_steps=1, optimizer=SGD(lr=0.25), weighting="uniform")
    model = ModelSpec(GCN(dropout=0.0), encoder=LinearEncoder(dim=64))
    return ist.Course(rounds=2, algorithm=algorithm, model=model, **fields)


def without_dropout(**fields: object) -> ist.Course:
    """Return one step of plain SGD of the default network without dropout, each client counting as one."""
    algorithm = ist.FedAvg(local_steps=1, optimizer=SGD(lr=0.25), weighting="uniform")
    return ist.Course(rounds=2, algorithm=algorithm, model=ModelSpec(GCN(dropout=0.0)), **fields)


def short(**fields: object) -> ist.Course:
    """Return FedAvg of a few rounds in which each client counts as one."""
    return ist.Course(rounds=30, evaluate_every=10, algorithm=ist.FedAvg(weighting="uniform"), **fields)


NOISE = ClientDP(clip=1.0, noise=0.1, mode="local")
GUARDS = ((), (Quantise(bits=8),), (NOISE,), (SecureSum(),))
SECTIONS = {
    "words": Section(
        "FedAvg, four steps: one update of each client",
        first_rounds,
        (Vocabulary(), LabelShares()),
        ((), (Quantise(bits=8),), (SecureSum(),)),
    ),
    "step": Section(
        "FedAvg, one step: one gradient of each client",
        one_step,
        (LabelShares(),),
        ((), (Quantise(bits=8),), (SecureSum(),)),
    ),
    "noise": Section(
        "FedAvg, four steps, noise on whole clients that each adds itself",
        alike,
        (Vocabulary(),),
        ((), (ClientDP(clip=0.1, noise=1.0, mode="local"),)),
    ),
    "span": Section(
        "FedAvg, one step behind a linear encoder: one gradient of each client",
        linear,
        (FeatureSpan(),),
        GUARDS,
    ),
    "matching": Section(
        "FedAvg, one step: inputs that have the gradient of a client",
        without_dropout,
        (FeaturesByMatching(steps=100), EdgesByMatching(steps=100)),
        GUARDS,
        clients=(50,),
    ),
    "classes": Section(
        "FedAvg, 30 rounds: the models that every client is sent",
        short,
        (ClassInversion(), ClassGenerator()),
        ((), (NOISE,)),
        clients=(5,),
    ),
}

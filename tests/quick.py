"""Every algorithm of the table with few steps, where its own defaults take long.

Two steps are a first one and one that follows from it; what a third would show, they do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from isthmus.algorithms import ALGORITHMS, FedSagePlus
from isthmus.algorithms.fedgrl.downstream import Finetune
from isthmus.algorithms.fedgrl.encoder_learning import EncoderLearning
from isthmus.core.protocol import Algorithm

# One of each kind: a mean of models, memories on both sides, personal models, requests that differ by client and are
# answered by many at once, own heads and no labels, several exchanges in a round and in the setup.
KINDS = ("fedavg", "scaffold", "ditto", "fedgl", "fedgrl", "gfl_appnp")
STEPS = ("local_steps", "head_steps", "inner_steps", "tune_steps")


def quick(name: str, **fields: Any) -> Algorithm[Any]:
    """Return an algorithm by its name, with other values in some fields."""
    usual: Any = ALGORITHMS[name]()
    few = {step: 2 for step in STEPS if getattr(usual, step, 0) > 2}
    few |= {rounds: 2 for rounds in ("encoder_rounds", "stage_rounds") if hasattr(usual, rounds)}
    made = replace(usual, **{**few, **fields})
    if isinstance(made, EncoderLearning):
        narrow = replace(made.objective, hidden=16) if hasattr(made.objective, "hidden") else made.objective
        made = replace(made, objective=narrow, downstream=Finetune(steps=4, evaluate_every=2))
    if isinstance(made, FedSagePlus):
        made = replace(made, pretrain_steps=2, cross_rounds=1, latent=16, hidden=16)
    return made


def by_kind(names: Iterable[str] = ALGORITHMS) -> list[Any]:
    """Return names for a test of what is a runtime's rather than a method's: the default set has one of each kind."""
    return [name if name in KINDS else pytest.param(name, marks=pytest.mark.slow) for name in names]

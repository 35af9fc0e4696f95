"""Every algorithm of the table with few steps, where its own defaults take long."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from isthmus.algorithms import ALGORITHMS, FedSagePlus
from isthmus.algorithms.fedgrl.downstream import Finetune
from isthmus.algorithms.fedgrl.encoder_learning import EncoderLearning
from isthmus.core.protocol import Algorithm


def quick(name: str, **fields: Any) -> Algorithm[Any]:
    """Return an algorithm by its name, with other values in some fields."""
    made = ALGORITHMS[name](**fields)
    if isinstance(made, EncoderLearning):
        made = replace(made, downstream=Finetune(steps=4, evaluate_every=2))
    if isinstance(made, FedSagePlus):
        made = replace(made, pretrain_steps=2, cross_rounds=1)
    return made

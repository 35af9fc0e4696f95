"""Algorithms by name: one paper, one file, both halves."""

from typing import Any

from isthmus.algorithms.fedavg import FedAvg
from isthmus.algorithms.fedgl import FedGL
from isthmus.algorithms.fedopt import FedOpt
from isthmus.algorithms.fedprox import FedProx
from isthmus.algorithms.fgssl import FGSSL
from isthmus.algorithms.local import Local
from isthmus.algorithms.pooled import Pooled
from isthmus.core.protocol import Algorithm

ALGORITHMS: dict[str, type[Algorithm[Any]]] = {
    "local": Local,
    "global": Pooled,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fedopt": FedOpt,
    "fedgl": FedGL,
    "fgssl": FGSSL,
}

__all__ = ["ALGORITHMS", "FGSSL", "FedAvg", "FedGL", "FedOpt", "FedProx", "Local", "Pooled"]

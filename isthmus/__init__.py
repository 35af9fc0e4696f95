"""Isthmus: graph neural networks trained across organisations that may not pool their graphs.

    import isthmus as ist
    result = ist.run(ist.Course(rounds=50, algorithm=ist.FedProx(mu=0.01)))

Names are imported when they are used, so that `import isthmus` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from isthmus.algorithms import FedAvg as FedAvg
    from isthmus.algorithms import FedOpt as FedOpt
    from isthmus.algorithms import FedProx as FedProx
    from isthmus.algorithms import Local as Local
    from isthmus.algorithms import Pooled as Pooled
    from isthmus.config.course import Course as Course
    from isthmus.config.load import load_course as load_course
    from isthmus.core.errors import BadInput as BadInput
    from isthmus.core.errors import IsthmusError as IsthmusError
    from isthmus.core.federation import Federation as Federation
    from isthmus.core.folds import weighted_mean as weighted_mean
    from isthmus.core.protocol import Algorithm as Algorithm
    from isthmus.core.protocol import ModelState as ModelState
    from isthmus.core.protocol import Request as Request
    from isthmus.core.protocol import on as on
    from isthmus.core.record import Params as Params
    from isthmus.core.record import Record as Record
    from isthmus.data.graph import Graph as Graph
    from isthmus.learn.graph_client import GraphClient as GraphClient
    from isthmus.learn.optimizers import SGD as SGD
    from isthmus.learn.optimizers import Adam as Adam
    from isthmus.learn.optimizers import AdamW as AdamW
    from isthmus.models import ModelSpec as ModelSpec
    from isthmus.runs.life import resume as resume
    from isthmus.runs.life import run as run
    from isthmus.runs.result import Result as Result

# Where each public name lives.
_HOMES = {
    "Adam": "isthmus.learn.optimizers",
    "AdamW": "isthmus.learn.optimizers",
    "Algorithm": "isthmus.core.protocol",
    "BadInput": "isthmus.core.errors",
    "Course": "isthmus.config.course",
    "FedAvg": "isthmus.algorithms",
    "FedOpt": "isthmus.algorithms",
    "FedProx": "isthmus.algorithms",
    "Federation": "isthmus.core.federation",
    "Graph": "isthmus.data.graph",
    "GraphClient": "isthmus.learn.graph_client",
    "IsthmusError": "isthmus.core.errors",
    "Local": "isthmus.algorithms",
    "ModelSpec": "isthmus.models",
    "ModelState": "isthmus.core.protocol",
    "Params": "isthmus.core.record",
    "Pooled": "isthmus.algorithms",
    "Record": "isthmus.core.record",
    "Request": "isthmus.core.protocol",
    "Result": "isthmus.runs.result",
    "SGD": "isthmus.learn.optimizers",
    "load_course": "isthmus.config.load",
    "on": "isthmus.core.protocol",
    "resume": "isthmus.runs.life",
    "run": "isthmus.runs.life",
    "weighted_mean": "isthmus.core.folds",
}

__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'isthmus' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__

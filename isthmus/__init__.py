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
    from isthmus.algorithms import APFL as APFL
    from isthmus.algorithms import FGSSL as FGSSL
    from isthmus.algorithms import GCFL as GCFL
    from isthmus.algorithms import GFLAPPNP as GFLAPPNP
    from isthmus.algorithms import MOON as MOON
    from isthmus.algorithms import Ditto as Ditto
    from isthmus.algorithms import FedAvg as FedAvg
    from isthmus.algorithms import FedAvgFT as FedAvgFT
    from isthmus.algorithms import FedDyn as FedDyn
    from isthmus.algorithms import FedEx as FedEx
    from isthmus.algorithms import FedGAP as FedGAP
    from isthmus.algorithms import FedGL as FedGL
    from isthmus.algorithms import FedGNN as FedGNN
    from isthmus.algorithms import FedGRL as FedGRL
    from isthmus.algorithms import FedNova as FedNova
    from isthmus.algorithms import FedOpt as FedOpt
    from isthmus.algorithms import FedProGAP as FedProGAP
    from isthmus.algorithms import FedProx as FedProx
    from isthmus.algorithms import FedRep as FedRep
    from isthmus.algorithms import FedSagePlus as FedSagePlus
    from isthmus.algorithms import FineTuned as FineTuned
    from isthmus.algorithms import GCFLPlus as GCFLPlus
    from isthmus.algorithms import Local as Local
    from isthmus.algorithms import LocalGRL as LocalGRL
    from isthmus.algorithms import PFedMe as PFedMe
    from isthmus.algorithms import Pooled as Pooled
    from isthmus.algorithms import Scaffold as Scaffold
    from isthmus.algorithms.fedavg import ModelUpdate as ModelUpdate
    from isthmus.algorithms.fedavg import TrainModel as TrainModel
    from isthmus.config.course import Course as Course
    from isthmus.config.load import load_course as load_course
    from isthmus.core.errors import BadInput as BadInput
    from isthmus.core.errors import IsthmusError as IsthmusError
    from isthmus.core.federation import Federation as Federation
    from isthmus.core.folding.centres import BoundedMean as BoundedMean
    from isthmus.core.folding.centres import CentredClipping as CentredClipping
    from isthmus.core.folding.centres import GeometricMedian as GeometricMedian
    from isthmus.core.folding.krum import Bulyan as Bulyan
    from isthmus.core.folding.krum import Krum as Krum
    from isthmus.core.folding.trust import FLTrust as FLTrust
    from isthmus.core.folding.trust import FoolsGold as FoolsGold
    from isthmus.core.folds import Fold as Fold
    from isthmus.core.folds import Median as Median
    from isthmus.core.folds import TrimmedMean as TrimmedMean
    from isthmus.core.folds import WeightedMean as WeightedMean
    from isthmus.core.folds import median as median
    from isthmus.core.folds import weighted_mean as weighted_mean
    from isthmus.core.guards.guard import AtClient as AtClient
    from isthmus.core.guards.guard import AtServer as AtServer
    from isthmus.core.guards.guard import Guard as Guard
    from isthmus.core.guards.guard import Suspicious as Suspicious
    from isthmus.core.protocol import Algorithm as Algorithm
    from isthmus.core.protocol import ModelState as ModelState
    from isthmus.core.protocol import Request as Request
    from isthmus.core.protocol import cohort as cohort
    from isthmus.core.protocol import on as on
    from isthmus.core.record import Params as Params
    from isthmus.core.record import Record as Record
    from isthmus.core.replies import Each as Each
    from isthmus.core.replies import Stack as Stack
    from isthmus.core.training import Callback as Callback
    from isthmus.core.training import EarlyStopping as EarlyStopping
    from isthmus.data.dataset import Dataset as Dataset
    from isthmus.data.dividing import MaskRule as MaskRule
    from isthmus.data.dividing import Splitter as Splitter
    from isthmus.data.graph import Graph as Graph
    from isthmus.data.graph_set import GraphSet as GraphSet
    from isthmus.data.link_graph import LinkGraph as LinkGraph
    from isthmus.learn.batching import Batching as Batching
    from isthmus.learn.graph_client import GraphClient as GraphClient
    from isthmus.learn.graph_client import LocalTraining as LocalTraining
    from isthmus.learn.optimizers import SGD as SGD
    from isthmus.learn.optimizers import Adam as Adam
    from isthmus.learn.optimizers import AdamW as AdamW
    from isthmus.learn.optimizers import BothWays as BothWays
    from isthmus.learn.optimizers import Optimizer as Optimizer
    from isthmus.learn.optimizers import Pull as Pull
    from isthmus.learn.optimizers import Schedule as Schedule
    from isthmus.learn.tasks import Task as Task
    from isthmus.learn.together.stacked_clients import GraphCohort as GraphCohort
    from isthmus.models import GNN as GNN
    from isthmus.models import GraphInput as GraphInput
    from isthmus.models import Model as Model
    from isthmus.models import ModelSpec as ModelSpec
    from isthmus.monitors import Measured as Measured
    from isthmus.monitors import Monitor as Monitor
    from isthmus.monitors import View as View
    from isthmus.runs.life import Result as Result
    from isthmus.runs.predicting import predictions as predictions
    from isthmus.runs.simulated import resume as resume
    from isthmus.runs.simulated import run as run
    from isthmus.runs.simulated import run_with_baselines as run_with_baselines
    from isthmus.runs.simulation import Scenario as Scenario
    from isthmus.runs.simulation import load_scenario as load_scenario

# Where the public names live: all that a person needs who runs courses or writes parts of their own.
_PUBLIC = {
    "isthmus.algorithms": (
        "APFL",
        "Ditto",
        "FGSSL",
        "FedAvg",
        "FedAvgFT",
        "FedDyn",
        "FedEx",
        "FedGAP",
        "FedGL",
        "FedGNN",
        "FedGRL",
        "FedNova",
        "FedOpt",
        "FedProGAP",
        "FedProx",
        "FedRep",
        "FedSagePlus",
        "FineTuned",
        "GCFL",
        "GCFLPlus",
        "GFLAPPNP",
        "Local",
        "LocalGRL",
        "MOON",
        "PFedMe",
        "Pooled",
        "Scaffold",
    ),
    "isthmus.algorithms.fedavg": (
        "ModelUpdate",
        "TrainModel",
    ),
    "isthmus.config.course": ("Course",),
    "isthmus.config.load": ("load_course",),
    "isthmus.core.errors": (
        "BadInput",
        "IsthmusError",
    ),
    "isthmus.core.federation": ("Federation",),
    "isthmus.core.folding.centres": (
        "BoundedMean",
        "CentredClipping",
        "GeometricMedian",
    ),
    "isthmus.core.folding.krum": (
        "Bulyan",
        "Krum",
    ),
    "isthmus.core.folding.trust": (
        "FLTrust",
        "FoolsGold",
    ),
    "isthmus.core.folds": (
        "Fold",
        "Median",
        "TrimmedMean",
        "WeightedMean",
        "median",
        "weighted_mean",
    ),
    "isthmus.core.guards.guard": (
        "AtClient",
        "AtServer",
        "Guard",
        "Suspicious",
    ),
    "isthmus.core.protocol": (
        "Algorithm",
        "ModelState",
        "Request",
        "cohort",
        "on",
    ),
    "isthmus.core.record": (
        "Params",
        "Record",
    ),
    "isthmus.core.replies": (
        "Each",
        "Stack",
    ),
    "isthmus.core.training": (
        "Callback",
        "EarlyStopping",
    ),
    "isthmus.data.dataset": ("Dataset",),
    "isthmus.data.graph": ("Graph",),
    "isthmus.data.graph_set": ("GraphSet",),
    "isthmus.data.link_graph": ("LinkGraph",),
    "isthmus.data.dividing": ("MaskRule", "Splitter"),
    "isthmus.learn.batching": ("Batching",),
    "isthmus.learn.graph_client": ("GraphClient", "LocalTraining"),
    "isthmus.learn.optimizers": (
        "Adam",
        "AdamW",
        "BothWays",
        "Optimizer",
        "Pull",
        "SGD",
        "Schedule",
    ),
    "isthmus.learn.tasks": ("Task",),
    "isthmus.learn.together.stacked_clients": ("GraphCohort",),
    "isthmus.models": (
        "GNN",
        "GraphInput",
        "Model",
        "ModelSpec",
    ),
    "isthmus.monitors": (
        "Measured",
        "Monitor",
        "View",
    ),
    "isthmus.runs.predicting": ("predictions",),
    "isthmus.runs.life": ("Result",),
    "isthmus.runs.simulated": (
        "resume",
        "run",
        "run_with_baselines",
    ),
    "isthmus.runs.simulation": (
        "Scenario",
        "load_scenario",
    ),
}
_HOMES = {name: home for home, names in _PUBLIC.items() for name in names}

__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'isthmus' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__

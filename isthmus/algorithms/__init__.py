"""Algorithms by name: one paper, one file, both halves."""

from typing import Any

from isthmus.algorithms.apfl import APFL
from isthmus.algorithms.ditto import Ditto
from isthmus.algorithms.fedavg import FedAvg
from isthmus.algorithms.feddyn import FedDyn
from isthmus.algorithms.fedex import FedEx
from isthmus.algorithms.fedgap import FedGAP
from isthmus.algorithms.fedgl import FedGL
from isthmus.algorithms.fedgnn import FedGNN
from isthmus.algorithms.fedgrl import FedGRL, LocalGRL
from isthmus.algorithms.fednova import FedNova
from isthmus.algorithms.fedopt import FedOpt
from isthmus.algorithms.fedprogap import FedProGAP
from isthmus.algorithms.fedprox import FedProx
from isthmus.algorithms.fedrep import FedRep
from isthmus.algorithms.fedsage import FedSagePlus
from isthmus.algorithms.fgssl import FGSSL
from isthmus.algorithms.fine_tuning import FedAvgFT, FineTuned
from isthmus.algorithms.gcfl import GCFL, GCFLPlus
from isthmus.algorithms.gfl_appnp import GFLAPPNP
from isthmus.algorithms.local import Local, Pooled
from isthmus.algorithms.moon import MOON
from isthmus.algorithms.pfedme import PFedMe
from isthmus.algorithms.scaffold import Scaffold
from isthmus.core.protocol import Algorithm

ALGORITHMS: dict[str, type[Algorithm[Any]]] = {
    "local": Local,
    "global": Pooled,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fedopt": FedOpt,
    "scaffold": Scaffold,
    "fednova": FedNova,
    "moon": MOON,
    "feddyn": FedDyn,
    "fedrep": FedRep,
    "ditto": Ditto,
    "pfedme": PFedMe,
    "apfl": APFL,
    "fedavg_ft": FedAvgFT,
    "fedex": FedEx,
    "gcfl": GCFL,
    "gcfl_plus": GCFLPlus,
    "fedgap": FedGAP,
    "fedprogap": FedProGAP,
    "fedgl": FedGL,
    "fedgnn": FedGNN,
    "fedsage_plus": FedSagePlus,
    "fgssl": FGSSL,
    "fedgrl": FedGRL,
    "local_grl": LocalGRL,
    "gfl_appnp": GFLAPPNP,
}

__all__ = [
    "ALGORITHMS",
    "APFL",
    "FGSSL",
    "GCFL",
    "GFLAPPNP",
    "MOON",
    "Ditto",
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
    "GCFLPlus",
    "Local",
    "LocalGRL",
    "PFedMe",
    "Pooled",
    "Scaffold",
]

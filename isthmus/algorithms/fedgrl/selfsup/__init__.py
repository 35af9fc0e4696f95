"""Self-supervised objectives by name: what an encoder can learn from a graph without labels."""

from isthmus.algorithms.fedgrl.selfsup.bgrl import BGRL
from isthmus.algorithms.fedgrl.selfsup.dgi import DGI
from isthmus.algorithms.fedgrl.selfsup.gae import GAE
from isthmus.algorithms.fedgrl.selfsup.grace import GRACE
from isthmus.algorithms.fedgrl.selfsup.objective import SelfSupervision

SELF_SUPERVISIONS: dict[str, type[SelfSupervision]] = {"bgrl": BGRL, "grace": GRACE, "dgi": DGI, "gae": GAE}

__all__ = ["BGRL", "DGI", "GAE", "GRACE", "SELF_SUPERVISIONS", "SelfSupervision"]

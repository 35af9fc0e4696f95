"""Self-supervised objectives by name: what an encoder can learn from a graph without labels."""

from isthmus.learn.selfsup.bgrl import BGRL
from isthmus.learn.selfsup.dgi import DGI
from isthmus.learn.selfsup.gae import GAE
from isthmus.learn.selfsup.grace import GRACE
from isthmus.learn.selfsup.objective import SelfSupervision

SELF_SUPERVISIONS: dict[str, type[SelfSupervision]] = {"bgrl": BGRL, "grace": GRACE, "dgi": DGI, "gae": GAE}

__all__ = ["BGRL", "DGI", "GAE", "GRACE", "SELF_SUPERVISIONS", "SelfSupervision"]

"""Malicious clients that spoil a course, by what they send or by what they learn from.

    from isthmus.attacks.poisoning import SignFlip, run_poisoned
    run_poisoned(course, SignFlip(clients=("client-0",)))

Each is a frozen dataclass in a file of its own. Those of messages are guards too, with nothing but a client half, and
can stand first in a course's list.
"""

from isthmus.attacks.poisoning.free_rider import FreeRider
from isthmus.attacks.poisoning.inner_product import InnerProduct
from isthmus.attacks.poisoning.label_flip import LabelFlip
from isthmus.attacks.poisoning.little_is_enough import LittleIsEnough
from isthmus.attacks.poisoning.poisoned import poisoned, run_poisoned
from isthmus.attacks.poisoning.poisoner import Poisoning
from isthmus.attacks.poisoning.random_update import RandomUpdate
from isthmus.attacks.poisoning.scaling import Scaling
from isthmus.attacks.poisoning.sign_flip import SignFlip
from isthmus.attacks.poisoning.stale import StaleReplies
from isthmus.attacks.poisoning.subgraph_trigger import SubgraphTrigger
from isthmus.attacks.poisoning.trigger import Trigger
from isthmus.attacks.poisoning.wrong_edges import WrongEdges
from isthmus.attacks.poisoning.wrong_gradients import WrongGradients

POISONINGS: dict[str, type[Poisoning]] = {
    "free_rider": FreeRider,
    "inner_product": InnerProduct,
    "label_flip": LabelFlip,
    "little_is_enough": LittleIsEnough,
    "random_update": RandomUpdate,
    "scaling": Scaling,
    "sign_flip": SignFlip,
    "stale": StaleReplies,
    "subgraph_trigger": SubgraphTrigger,
    "trigger": Trigger,
    "wrong_edges": WrongEdges,
    "wrong_gradients": WrongGradients,
}

__all__ = [
    "POISONINGS",
    "FreeRider",
    "InnerProduct",
    "LabelFlip",
    "LittleIsEnough",
    "Poisoning",
    "RandomUpdate",
    "Scaling",
    "SignFlip",
    "StaleReplies",
    "SubgraphTrigger",
    "Trigger",
    "WrongEdges",
    "WrongGradients",
    "poisoned",
    "run_poisoned",
]

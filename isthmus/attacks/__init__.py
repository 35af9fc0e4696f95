"""Attacks on courses: what somebody in a position can find out, or spoil. One attack, one file.

`audit/` runs a course, lets attacks see what their positions see, and puts what they find beside what anybody could
guess; `poisoning/` has clients that spoil a course by what they send or learn from.
"""

from isthmus.attacks.attack import Attack
from isthmus.attacks.crafting.dead_model import DeadModel
from isthmus.attacks.crafting.read_rows import ReadRows
from isthmus.attacks.inputs.feature_span import FeatureSpan
from isthmus.attacks.inputs.label_shares import LabelShares
from isthmus.attacks.inputs.words import Vocabulary
from isthmus.attacks.links.from_rows import LinksFromRows
from isthmus.attacks.membership.lira import Lira
from isthmus.attacks.membership.loss_threshold import LossThreshold
from isthmus.attacks.poisoning import POISONINGS
from isthmus.config.registry import FAMILIES, Family

ATTACKS: dict[str, type[Attack]] = {
    "loss_threshold": LossThreshold,
    "lira": Lira,
    "vocabulary": Vocabulary,
    "label_shares": LabelShares,
    "feature_span": FeatureSpan,
    "links_from_rows": LinksFromRows,
    "dead_model": DeadModel,
    "read_rows": ReadRows,
}
# Attacks stand above what builds parts from names, so their table is handed down. Some poisonings are guards as well.
FAMILIES[Attack] = Family("attacks", ATTACKS, POISONINGS)

__all__ = [
    "ATTACKS",
    "Attack",
    "DeadModel",
    "FeatureSpan",
    "LabelShares",
    "LinksFromRows",
    "Lira",
    "LossThreshold",
    "ReadRows",
    "Vocabulary",
]

"""Attacks on courses: what somebody in a position can find out, or spoil. One attack, one file.

`audit/` runs a course, lets attacks see what their positions see, and puts what they find beside what anybody could
guess; `poisoning/` has clients that spoil a course by what they send or learn from.
"""

from isthmus.attacks.attack import Attack
from isthmus.attacks.inputs.class_generator import ClassGenerator
from isthmus.attacks.inputs.class_inversion import ClassInversion
from isthmus.attacks.inputs.edges_by_matching import EdgesByMatching
from isthmus.attacks.inputs.feature_span import FeatureSpan
from isthmus.attacks.inputs.grain.graph_from_gradient import GraphFromGradient
from isthmus.attacks.inputs.label_shares import LabelShares
from isthmus.attacks.inputs.matching import FeaturesByMatching
from isthmus.attacks.inputs.words import Vocabulary
from isthmus.attacks.links.from_rows import LinksFromRows
from isthmus.attacks.membership.lira import Lira
from isthmus.attacks.membership.loss_threshold import LossThreshold
from isthmus.config.registry import FAMILIES, Family

ATTACKS: dict[str, type[Attack]] = {
    "loss_threshold": LossThreshold,
    "lira": Lira,
    "vocabulary": Vocabulary,
    "label_shares": LabelShares,
    "feature_span": FeatureSpan,
    "features_by_matching": FeaturesByMatching,
    "edges_by_matching": EdgesByMatching,
    "graph_from_gradient": GraphFromGradient,
    "class_inversion": ClassInversion,
    "class_generator": ClassGenerator,
    "links_from_rows": LinksFromRows,
}
# Attacks stand above what builds parts from names, so their table is handed down.
FAMILIES[Attack] = Family("attacks", ATTACKS)

__all__ = [
    "ATTACKS",
    "Attack",
    "ClassGenerator",
    "ClassInversion",
    "EdgesByMatching",
    "FeatureSpan",
    "FeaturesByMatching",
    "GraphFromGradient",
    "LabelShares",
    "LinksFromRows",
    "Lira",
    "LossThreshold",
    "Vocabulary",
]

"""Attacks on courses: what somebody in a position can find out, or spoil. One attack, one file.

`audit/` runs a course, lets attacks see what their positions see, and puts what they find beside what anybody could
guess; `poisoning/` has clients that spoil a course by what they send or learn from.
"""

from isthmus.attacks.attack import Attack
from isthmus.attacks.crafting.dead_model import DeadModel
from isthmus.attacks.crafting.read_rows import ReadRows
from isthmus.attacks.inputs.class_generator import ClassGenerator
from isthmus.attacks.inputs.class_inversion import ClassInversion
from isthmus.attacks.inputs.edges_by_matching import EdgesByMatching
from isthmus.attacks.inputs.feature_span import FeatureSpan
from isthmus.attacks.inputs.grain.graph_from_gradient import GraphFromGradient
from isthmus.attacks.inputs.label_shares import LabelShares
from isthmus.attacks.inputs.matching import FeaturesByMatching
from isthmus.attacks.inputs.words import Vocabulary
from isthmus.attacks.links.from_model import LinksFromModel
from isthmus.attacks.links.from_rows import LinksFromRows
from isthmus.attacks.links.influence import LinkInfluence
from isthmus.attacks.membership.by_gradients import GradientMembership
from isthmus.attacks.membership.lira import Lira
from isthmus.attacks.membership.loss_threshold import LossThreshold
from isthmus.attacks.methods.generated_features import GeneratedFeatures
from isthmus.attacks.methods.generated_nodes import GeneratedNodes
from isthmus.attacks.methods.hidden_gradients import HiddenGradients
from isthmus.attacks.methods.labels_from_rows import LabelsFromRows
from isthmus.attacks.methods.peers_nearest import PeersNearest
from isthmus.attacks.methods.rated_items import RatedItems
from isthmus.attacks.methods.users_by_embeddings import UsersByEmbeddings
from isthmus.attacks.methods.variate_labels import VariateLabels
from isthmus.attacks.methods.variate_words import VariateWords
from isthmus.attacks.poisoning import POISONINGS
from isthmus.attacks.properties.from_updates import PropertyInference
from isthmus.attacks.properties.words_of_one import WordsOfOne
from isthmus.config.registry import FAMILIES, Family

ATTACKS: dict[str, type[Attack]] = {
    "loss_threshold": LossThreshold,
    "lira": Lira,
    "gradient_membership": GradientMembership,
    "vocabulary": Vocabulary,
    "label_shares": LabelShares,
    "feature_span": FeatureSpan,
    "features_by_matching": FeaturesByMatching,
    "edges_by_matching": EdgesByMatching,
    "graph_from_gradient": GraphFromGradient,
    "class_inversion": ClassInversion,
    "class_generator": ClassGenerator,
    "links_from_rows": LinksFromRows,
    "dead_model": DeadModel,
    "read_rows": ReadRows,
    "links_from_model": LinksFromModel,
    "link_influence": LinkInfluence,
    "property_inference": PropertyInference,
    "words_of_one": WordsOfOne,
    "variate_words": VariateWords,
    "variate_labels": VariateLabels,
    "labels_from_rows": LabelsFromRows,
    "generated_features": GeneratedFeatures,
    "generated_nodes": GeneratedNodes,
    "peers_nearest": PeersNearest,
    "rated_items": RatedItems,
    "users_by_embeddings": UsersByEmbeddings,
    "hidden_gradients": HiddenGradients,
}
# Attacks stand above what builds parts from names, so their table is handed down. Some poisonings are guards as well.
FAMILIES[Attack] = Family("attacks", ATTACKS, POISONINGS)

__all__ = [
    "ATTACKS",
    "Attack",
    "ClassGenerator",
    "ClassInversion",
    "DeadModel",
    "EdgesByMatching",
    "FeatureSpan",
    "FeaturesByMatching",
    "GeneratedFeatures",
    "GeneratedNodes",
    "GradientMembership",
    "GraphFromGradient",
    "HiddenGradients",
    "LabelShares",
    "LabelsFromRows",
    "LinkInfluence",
    "LinksFromModel",
    "LinksFromRows",
    "Lira",
    "LossThreshold",
    "PeersNearest",
    "PropertyInference",
    "RatedItems",
    "ReadRows",
    "UsersByEmbeddings",
    "VariateLabels",
    "VariateWords",
    "Vocabulary",
    "WordsOfOne",
]

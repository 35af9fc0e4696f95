"""Guards by name: what is done to messages so that they tell less, weigh less, or can be believed."""

from isthmus.core.guards.guard import Guard
from isthmus.privacy.checking.class_sanity import ClassSanity
from isthmus.privacy.checking.distance_to_median import DistanceToMedian
from isthmus.privacy.checking.no_repeats import NoRepeats
from isthmus.privacy.checking.norm_bound import NormBound
from isthmus.privacy.checking.quarantine import Quarantine
from isthmus.privacy.checking.robust_fold import RobustFold

GUARDS: dict[str, type[Guard]] = {
    "robust_fold": RobustFold,
    "norm_bound": NormBound,
    "distance_to_median": DistanceToMedian,
    "class_sanity": ClassSanity,
    "no_repeats": NoRepeats,
    "quarantine": Quarantine,
}

"""Folds by name: what replies become one by. Those that compare whole replies are here, one idea in one file."""

from isthmus.core.folding.centres import BoundedMean, CentredClipping, GeometricMedian
from isthmus.core.folding.krum import Bulyan, Krum
from isthmus.core.folding.trust import FLTrust, FoolsGold
from isthmus.core.folds import Fold, Median, TrimmedMean, WeightedMean

FOLDS: dict[str, type[Fold]] = {
    "weighted_mean": WeightedMean,
    "median": Median,
    "trimmed_mean": TrimmedMean,
    "krum": Krum,
    "bulyan": Bulyan,
    "geometric_median": GeometricMedian,
    "centred_clipping": CentredClipping,
    "norm_bound": BoundedMean,
    "foolsgold": FoolsGold,
    "fltrust": FLTrust,
}

"""Guards by name: what is done to messages so that they tell less, weigh less, or can be believed."""

from isthmus.core.guards.guard import Guard
from isthmus.privacy.checking.class_sanity import ClassSanity
from isthmus.privacy.checking.distance_to_median import DistanceToMedian
from isthmus.privacy.checking.no_repeats import NoRepeats
from isthmus.privacy.checking.norm_bound import NormBound
from isthmus.privacy.checking.quarantine import Quarantine
from isthmus.privacy.checking.robust_fold import RobustFold
from isthmus.privacy.checking.sane_model import SaneModel
from isthmus.privacy.compression.delta import Delta
from isthmus.privacy.compression.entropy import Entropy
from isthmus.privacy.compression.low_rank import LowRank
from isthmus.privacy.compression.quantise import Quantise
from isthmus.privacy.compression.random_k import RandomK
from isthmus.privacy.compression.top_k import TopK
from isthmus.privacy.noise.client_dp import ClientDP
from isthmus.privacy.noise.edge_response import EdgeResponse
from isthmus.privacy.noise.example_dp import ExampleDP
from isthmus.privacy.noise.graph_dp import EdgeDP, NodeDP
from isthmus.privacy.noise.row_noise import RowNoise
from isthmus.privacy.secure_sum import SecureSum

GUARDS: dict[str, type[Guard]] = {
    "class_sanity": ClassSanity,
    "client_dp": ClientDP,
    "delta": Delta,
    "distance_to_median": DistanceToMedian,
    "edge_dp": EdgeDP,
    "edge_response": EdgeResponse,
    "entropy": Entropy,
    "example_dp": ExampleDP,
    "low_rank": LowRank,
    "no_repeats": NoRepeats,
    "node_dp": NodeDP,
    "norm_bound": NormBound,
    "quantise": Quantise,
    "quarantine": Quarantine,
    "random_k": RandomK,
    "robust_fold": RobustFold,
    "row_noise": RowNoise,
    "sane_model": SaneModel,
    "secure_sum": SecureSum,
    "top_k": TopK,
}

"""Guards by name: what is done to messages so that they tell less, weigh less, or can be believed."""

from isthmus.core.guards.guard import Guard
from isthmus.privacy.compression.delta import Delta
from isthmus.privacy.compression.entropy import Entropy
from isthmus.privacy.compression.low_rank import LowRank
from isthmus.privacy.compression.quantise import Quantise
from isthmus.privacy.compression.random_k import RandomK
from isthmus.privacy.compression.top_k import TopK
from isthmus.privacy.noise.client_dp import ClientDP
from isthmus.privacy.secure_sum import SecureSum

GUARDS: dict[str, type[Guard]] = {
    "client_dp": ClientDP,
    "delta": Delta,
    "entropy": Entropy,
    "low_rank": LowRank,
    "quantise": Quantise,
    "random_k": RandomK,
    "secure_sum": SecureSum,
    "top_k": TopK,
}

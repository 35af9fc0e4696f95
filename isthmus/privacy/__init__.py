"""Guards by name: what is done to messages so that they tell less, weigh less, or can be believed."""

from isthmus.core.guards.guard import Guard
from isthmus.privacy.compression.delta import Delta
from isthmus.privacy.compression.entropy import Entropy
from isthmus.privacy.compression.low_rank import LowRank
from isthmus.privacy.compression.quantise import Quantise
from isthmus.privacy.compression.random_k import RandomK
from isthmus.privacy.compression.top_k import TopK

GUARDS: dict[str, type[Guard]] = {
    "delta": Delta,
    "entropy": Entropy,
    "low_rank": LowRank,
    "quantise": Quantise,
    "random_k": RandomK,
    "top_k": TopK,
}

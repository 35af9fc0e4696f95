"""The federation as an algorithm's server half sees it, and the contract of the runtimes that carry its exchanges."""

from isthmus.core.federation.contract import (
    ExchangeReport,
    ExchangeRules,
    InitialModel,
    Listener,
    Outcome,
    Outcomes,
    Runtime,
    StackOutcome,
    apart,
)
from isthmus.core.federation.federation import Federation, Replies

__all__ = [
    "ExchangeReport",
    "ExchangeRules",
    "Federation",
    "InitialModel",
    "Listener",
    "Outcome",
    "Outcomes",
    "Replies",
    "Runtime",
    "StackOutcome",
    "apart",
]

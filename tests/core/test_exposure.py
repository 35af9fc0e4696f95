from dataclasses import dataclass

from isthmus.algorithms import ALGORITHMS, FedAvg, Local
from isthmus.core.exposure import exposure, field_docs
from isthmus.core.federation import Federation
from isthmus.core.folds import weighted_mean
from isthmus.core.protocol import Algorithm, ModelState, Request, on
from isthmus.core.record import Params, Record


@dataclass(frozen=True)
class Parent(Record):
    first: int
    """What the parent says."""


@dataclass(frozen=True)
class Child(Parent):
    second: int
    third: int
    """What the
    child says."""


@dataclass(frozen=True)
class Both(Request[Parent]):
    params: Params


@dataclass(frozen=True)
class Folded(Request[Parent]):
    params: Params


@dataclass(frozen=True)
class Mixed(Algorithm[ModelState]):
    """Asks for one thing both ways and for the other only folded."""

    def setup(self, fed: Federation) -> ModelState:
        fed.ask({client: Both(fed.initial_params) for client in fed.clients})
        return ModelState(fed.initial_params)

    def round(self, state: ModelState, fed: Federation) -> ModelState:
        fed.ask_folded(Both(state.params), weighted_mean)
        fed.ask_folded(Folded(state.params), weighted_mean)
        return state

    @on(Both)
    def both(self, request: Both, client: object) -> Parent:
        return Parent(1)

    @on(Folded)
    def folded(self, request: Folded, client: object) -> Parent:
        return Parent(1)


def test_a_field_s_docstring_is_the_string_below_it_also_for_inherited_fields() -> None:
    assert field_docs(Child) == {"first": "What the parent says.", "second": "", "third": "What the\nchild says."}


def test_what_is_asked_without_a_fold_anywhere_is_seen_by_the_server() -> None:
    sees = {exchange.request: exchange.server_sees for exchange in exposure(Mixed)}
    kept = {"KeepBest": "nothing but a receipt"}  # where a course keeps parts of the model with the clients
    assert sees == {"Both": "each client's", "Folded": "only the fold", "EvaluateModel": "each client's", **kept}


def test_a_reply_without_fields_is_a_receipt() -> None:
    sees = {exchange.request: exchange.server_sees for exchange in exposure(Local)}
    assert sees["TrainAlone"] == "nothing but a receipt"


def test_a_subclass_shows_its_parent_s_exchanges() -> None:
    assert [e.request for e in exposure(ALGORITHMS["fedprox"])] == [e.request for e in exposure(FedAvg)]


def test_every_field_that_any_listed_algorithm_exchanges_says_what_it_reveals() -> None:
    for algorithm in ALGORITHMS.values():
        for exchange in exposure(algorithm):
            assert all(exchange.sent.values()) and all(exchange.answered.values()), exchange.request

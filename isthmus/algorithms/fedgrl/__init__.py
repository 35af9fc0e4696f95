"""FedGRL: one encoder learned together without labels, a head of its own for every client.

Suresh, Godbout, Mukherjee, Shrivastava, Neville and Li (2022), "Federated graph representation learning using
self-supervision".

Its baseline without federation, `LocalGRL`, is here as well: every client learns an encoder from its own graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from isthmus.algorithms.fedgrl.encoder_learning import EncoderLearning, FedGRLState
from isthmus.core.errors import CourseFailed, refuse
from isthmus.core.federation import Federation
from isthmus.core.folds import Fold, weighted_mean
from isthmus.core.protocol import Kept, Known, Request, grown, on, unlike
from isthmus.core.record import Params, Record
from isthmus.learn.graph_client import WEIGHTINGS, GraphClient

# Among its numbers may be statistics, which no gradient moves.
MAX_PART = 1e12


@dataclass(frozen=True)
class EncoderUpdate(Record):
    """A client's encoder after local training."""

    params: Params
    """The encoder; alone it would reveal much about the client's graph, so the server asks for the mean."""
    objective: Params
    """The objective's own parts, likewise."""
    weight: float
    """The client's share in the mean: its number of nodes, or of training examples."""


@dataclass(frozen=True)
class TrainEncoder(Request[EncoderUpdate]):
    """Asks a client to train the encoder on its own graph."""

    params: Params
    """The encoder."""
    objective: Params
    """The objective's own parts."""

    def misfit(self, reply: EncoderUpdate, known: Known) -> str:
        """Return how the encoder or the objective's parts differ from what was sent."""
        return super().misfit(reply, known) or unlike("objective", reply.objective, self.objective)

    def limits(self, known: Known) -> dict[str, float]:
        """Return how large the numbers of the encoder and of the objective's parts may become."""
        return {"params": grown(self.params), "objective": max(grown(self.objective), MAX_PART)}


@dataclass(frozen=True)
class FedGRL(EncoderLearning):
    """Clients share an encoder f that learns from graphs without labels; heads p_c never leave them.

    The objective is the sum over clients of L_c(p_c, f) [c has labels] + lambda_c L~_c(f) (eq. 4), with L_c the
    cross-entropy of the client's training nodes (eq. 6, as a mean) and L~_c the self-supervised `objective` on its
    graph.

        setup:  server -> client  DescribeEncoder()
                client -> server  EncoderWidth(width)
        round:  server -> client  TrainEncoder(params, objective)
                client -> server  EncoderUpdate(params, objective, weight)   the server sees only the weighted mean
        evaluation: as always, but with the client's own head

    Protocol "lp1": f learns from L~ alone. Whenever the course evaluates, each client makes its own model out of the
    current f with its own labels (`downstream`), and is evaluated with that; nothing of it goes into f. That takes
    longer than a round: choose `evaluate_every` accordingly. "lp2": both terms, at once; heads are trained with f, or,
    with `copy_gate`, on a copy of what f gives, so that labels never reach f. With strength = 0, "lp2" is FedAvg whose
    heads stay with the clients and whose optimisers go on. Clients without labels, or without a task, take part in
    everything but L_c.

    A client's memory: `objective` (such as BGRL's target encoder), `optimizer` (its moments, which go on from round to
    round), `personal` (its head), and `model` (its own whole model, "lp1"). The place in the schedules of learning rate
    and target is the round, which comes with every request: a client that was away is where the others are. As they
    come, both are for 1000 rounds, of which the learning rate rises over 100; a course of another length is told so.

    Fields:
        objective:   the self-supervised objective
        protocol:    "lp1" or "lp2"
        downstream:  how a client makes its own model in "lp1": "freeze" or "finetune"
        strength:    lambda_c of "lp2"; per client by `client_settings` of the course; "lp1" has no use for it
        copy_gate:   whether labels are kept from f in "lp2"
        local_steps: steps between two messages; 0 leaves the encoder as it begins, a baseline
        optimizer:   the clients' optimiser
        weighting:   n_c is the number of "nodes", of training "examples", or the same for all ("uniform")
        fold:        how the clients' encoders become one: their weighted mean, or a robust fold
    """

    weighting: str = "nodes"
    fold: Fold = weighted_mean

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(self.weighting not in WEIGHTINGS, self, "weighting", f"choose from {', '.join(WEIGHTINGS)}")

    # ---- server

    def setup(self, fed: Federation) -> FedGRLState:
        """Begin with the course's encoder and with the objective's own parts."""
        return FedGRLState(fed.initial_params, self.own_parts(fed))

    def round(self, state: FedGRLState, fed: Federation) -> FedGRLState:
        """Send the encoder out, take the mean back."""
        mean = fed.ask_folded(TrainEncoder(state.params, state.objective), self.fold)
        return FedGRLState(mean.params, mean.objective)

    # ---- client

    @on(TrainEncoder)
    def train(self, request: TrainEncoder, client: GraphClient) -> EncoderUpdate:
        """Train the received encoder on the client's own graph; who has nothing to learn from weighs nothing."""
        params, objective = self.trained(client, request.params, request.objective)
        return EncoderUpdate(params, objective, self.weight(client))

    def weight(self, client: GraphClient) -> float:
        """Return n_c; zero for a client that neither term is about."""
        if not self.self_supervised and not client.num_examples:
            return 0.0
        sizes = {"nodes": float(client.num_nodes), "examples": float(client.num_examples), "uniform": 1.0}
        return sizes[self.weighting]


@dataclass(frozen=True)
class StartEncoder(Request[Kept]):
    """Gives every client the same encoder to begin with."""

    params: Params
    """The initial encoder."""
    objective: Params
    """The objective's own parts."""


@dataclass(frozen=True)
class TrainOwnEncoder(Request[Kept]):
    """Tells a client to go on training its own encoder."""


@dataclass(frozen=True)
class LocalGRL(EncoderLearning):
    """Every client does what FedGRL's clients do, with an encoder of its own that it never sends.

        setup:  server -> client  DescribeEncoder()
                client -> server  EncoderWidth(width)
                server -> client  StartEncoder(params, objective)
                client -> server  Kept()
        round:  server -> client  TrainOwnEncoder()
                client -> server  Kept()                           the server sees nothing but a receipt

    A client's memory: as in FedGRL, and `encoder` and `parts`, what it has learned so far.

    Fields: as in FedGRL, but for those of the mean.
    """

    personal: ClassVar[tuple[str, ...]] = ("model", "encoder")
    # The one place where a client's encoder lies is its memory, and only the setup gives it a start.
    starts_anew: ClassVar[bool] = False

    # ---- server

    def setup(self, fed: Federation) -> FedGRLState:
        """Give everybody the same start."""
        fed.ask(StartEncoder(fed.initial_params, self.own_parts(fed)), clients=fed.all_clients)
        return FedGRLState({}, {})

    def round(self, state: FedGRLState, fed: Federation) -> FedGRLState:
        """Let everybody train for a while."""
        fed.ask(TrainOwnEncoder())
        return state

    # ---- client

    @on(StartEncoder)
    def start(self, request: StartEncoder, client: GraphClient) -> Kept:
        """Begin with the given encoder."""
        client.state = {"encoder": request.params, "parts": request.objective}
        return Kept()

    @on(TrainOwnEncoder)
    def train(self, request: TrainOwnEncoder, client: GraphClient) -> Kept:
        """Train the client's own encoder a little further."""
        if "encoder" not in client.state:
            raise CourseFailed("this client has no encoder of its own: it failed in the setup")
        params, objective = self.trained(client, client.state["encoder"], client.state["parts"])
        client.state = {**client.state, "encoder": params, "parts": objective}
        return Kept()

    def client_params(self, params: Params, state: Mapping[str, Any]) -> Params:
        """Return the client's whole model; a client that failed in the setup has none."""
        return super().client_params(params, state) if "encoder" in state else {}

    def encoder(self, params: Params, state: Mapping[str, Any]) -> Params:
        """Return the client's own encoder."""
        own: Params = state.get("encoder", {})
        return own

"""GAP in a federation: FedAvg of a head on sums over neighbours that each client made once. Sajadmanesh et al. (2023).

S. Sajadmanesh, A. S. Shamsabadi, A. Bellet, D. Gatica-Perez, "GAP: differentially private graph neural networks with
aggregation perturbation", USENIX Security 2023.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

from isthmus.algorithms.fedavg import ModelUpdate, TrainModel
from isthmus.algorithms.fedgap.noisy_sums import memory_of_sums, network_of, own_rows, with_sums
from isthmus.core.errors import BadInput, BadMessage, refuse
from isthmus.core.federation import Federation
from isthmus.core.folds import Fold, weighted_mean
from isthmus.core.guards.hiding import NoisySums
from isthmus.core.protocol import EvaluateModel, Evaluation, Kept, Request, on
from isthmus.core.random import digest
from isthmus.core.record import Params, Record, State
from isthmus.learn.able import require_classes_of_nodes, require_whole_graph
from isthmus.learn.graph_client import GraphClient, LocalTraining
from isthmus.learn.optimizers import load_params

ENCODER = "gnn.encoder."
# Where a client keeps what its sums are made of.
MEMORY = "sums"


@dataclass(frozen=True)
class TrainEncoder(Request[ModelUpdate]):
    """Asks a client to train the model on its nodes' own features, as if it had no edges."""

    params: Params
    """The global model."""


@dataclass(frozen=True)
class SumNeighbors(Request[Kept]):
    """Tells each client the encoder whose rows it adds up over its edges, once for the whole course."""

    encoder: Params
    """The encoder, which no edge had a part in."""


@dataclass(frozen=True)
class HeadState(Record):
    """What the server keeps."""

    params: Params
    """The head, which the rounds train; the whole model where it has no such encoder."""
    encoder: Params
    """The encoder, as the setup left it."""


@dataclass(frozen=True)
class FedGAP(LocalTraining[HeadState]):
    """Clients train an encoder without edges, make sums over neighbours once, and train a head on these sums alone.

        setup:  server -> client  TrainEncoder(params)            `encoder_rounds` times
                client -> server  ModelUpdate(params, weight)     the server sees only the weighted mean
                server -> client  SumNeighbors(encoder)
                client -> server  Kept()
        round:  server -> client  TrainModel(params of the head)
                client -> server  ModelUpdate(params, weight)     the server sees only the weighted mean

    It is for the network `gap` (isthmus.models.gnn.gap), which says what the sums are. A client adds up over its own
    edges, once: the first SumNeighbors is answered, any other is refused. With the guard edge_dp or node_dp there is
    noise on the sums, from the client's own secret; everything that leaves a client afterwards, and its scores, is made
    of noisy sums, features and labels, whatever the number of rounds. Before, edges have no part in anything.

    What depends on edges without these guards: the sums. What is not hidden by noise on sums, with edge_dp: features
    and labels; with node_dp steps hide them too, those of the encoder as well.

    A client remembers the encoder and the key of its noise, not the sums, which are made again to the bit. One that has
    lost its memory leaves the course: its sums would get other noise. Scores on the global graph, in a simulation, are
    of the head on the sums of that graph without noise. With a model that has no such network there is nothing to make
    once, and it is FedAvg.

    Fields:
        encoder_rounds: rounds of FedAvg without edges in the setup
        local_steps, step_unit, optimizer, weighting, keep_moments, fold: as in FedAvg
    """

    encoder_rounds: int = 30
    fold: Fold = weighted_mean

    starts_anew: ClassVar[bool] = False
    # What guards look for in this very class: all that leaves a client is what `fit` gave, and what was said above.
    tells_only_models: ClassVar[bool] = True
    sums_once: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(self.encoder_rounds < 0, self, "encoder_rounds", "it must be at least 0")

    # ---- server

    def setup(self, fed: Federation) -> HeadState:
        """Learn the encoder without edges, and have every client make its sums."""
        params = dict(fed.initial_params)
        names = [name for name in params if name.startswith(ENCODER)]
        if not names:
            fed.note("the model's graph network is not 'gap', so there are no sums to be made once: this is FedAvg")
            return HeadState(params, {})
        for _ in range(self.encoder_rounds):
            params = dict(fed.ask_folded(TrainEncoder(params), self.fold).params)
        encoder = {name: params.pop(name) for name in names}
        fed.ask(SumNeighbors(encoder))
        return HeadState(params, encoder)

    def round(self, state: HeadState, fed: Federation) -> HeadState:
        """Send the head out, take the mean back."""
        return HeadState(fed.ask_folded(TrainModel(state.params), self.fold).params, state.encoder)

    def global_params(self, state: HeadState) -> Params:
        """Return encoder and head."""
        return {**state.encoder, **state.params}

    # ---- client

    def require_able(self, client: GraphClient) -> None:
        """Refuse personal parameters, sampled neighbours, and tasks on anything but nodes, where there are sums."""
        if network_of(client.model) is None:
            return
        require_classes_of_nodes(client, "sums over neighbours are made once for nodes")
        require_whole_graph(client, "sums over neighbours are made once, and of all of them")
        if client.own:
            raise BadInput(
                f"fedgap shares the whole network, and {sorted(client.own)[0]} is personal: leave shared out"
            )

    @on(TrainEncoder)
    def train_encoder(self, request: TrainEncoder, client: GraphClient) -> ModelUpdate:
        """Train the received model without edges."""
        self.require_able(client)
        fitted = self.fit(request.params, client, prepared=own_rows(client.prepared))
        return ModelUpdate(fitted.params, self.weight(client))

    @on(SumNeighbors)
    def sum_neighbors(self, request: SumNeighbors, client: GraphClient) -> Kept:
        """Take note of what the sums are made of; they are made when they are needed, and never in another way."""
        if MEMORY in client.state:
            raise BadInput(f"{client.id} has made its sums for this course: a second time would tell more of its edges")
        found = memory_of_sums(request.encoder, client, self._hiding(client))
        _settle(client, found)
        client.state = {**client.state, MEMORY: found}
        return Kept()

    @on(TrainModel)
    def train(self, request: TrainModel, client: GraphClient) -> ModelUpdate:
        """Train the received head; the encoder has no part in it, and stays at home."""
        self.require_able(client)
        encoder = client.state[MEMORY]["encoder"] if MEMORY in client.state else {}
        fitted = self.fit({**encoder, **request.params}, client)
        return ModelUpdate({name: fitted.params[name] for name in request.params}, self.weight(client))

    @on(EvaluateModel)
    def evaluate(self, request: EvaluateModel, client: GraphClient) -> Evaluation:
        """Evaluate the model on the client's sums."""
        if MEMORY not in client.state and network_of(client.model) is None:
            return super().evaluate(request, client)
        memory: State = self.best_memory(client.state) if request.best else client.state
        load_params(client.model, client.complete(self.client_params(request.params, memory)))
        return Evaluation(*client.task.evaluate(client.model, self.data_of(client), request.splits))

    def data_of(self, client: GraphClient) -> object:
        """Return the client's sums as the head reads them; before they are made, its data without edges."""
        if MEMORY in client.state:
            return with_sums(client, client.state[MEMORY], self._hiding(client))
        return client.prepared if network_of(client.model) is None else own_rows(client.prepared)

    @staticmethod
    def _hiding(client: GraphClient) -> NoisySums | None:
        return None if client.guards is None else client.guards.noisy_sums


def _settle(client: GraphClient, memory: State) -> None:
    """See that sums are made once also where a server takes a client's memory back to before them."""
    if client.book is None:
        return
    keys = f"sums {client.course}"
    with suppress(BadMessage):  # a setup that was interrupted comes again, and must be the same
        client.book.open(keys)
    client.book.settle(keys, "what neighbours are added up by", digest({"memory": memory}))

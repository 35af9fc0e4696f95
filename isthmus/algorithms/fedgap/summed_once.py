"""The client's half of GAP and ProGAP in a federation: it adds up over its edges once, and learns from what came out.

A method that derives from `SummedOnce` says which network it is for, and has a server's half of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from isthmus.algorithms.fedavg import ModelUpdate, TrainModel
from isthmus.algorithms.fedgap.noisy_sums import memory_of_sums, network_of, own_rows, with_sums
from isthmus.core.errors import BadInput
from isthmus.core.guards.hiding import NoisySums
from isthmus.core.protocol import EvaluateModel, Evaluation, Kept, Request, StateT, on
from isthmus.core.random import digest
from isthmus.core.record import Params, State
from isthmus.learn.able import require_classes_of_nodes, require_whole_graph
from isthmus.learn.graph_client import GraphClient, LocalTraining
from isthmus.learn.optimizers import load_params, only

# Where a client keeps what its sets of sums are made of, one after the other.
MEMORY = "sums"


@dataclass(frozen=True)
class SumNeighbors(Request[Kept]):
    """Tells each client the encoder whose rows it adds up over its edges, once for the whole course."""

    encoder: Params
    """The part of the model that makes these rows, which was learned without an edge, or from noisy sums."""


@dataclass(frozen=True)
class SummedOnce(LocalTraining[StateT]):
    """A method whose clients make sets of sums over neighbours, each once, and train on what they have made so far.

    A client remembers what each set is made by and the key of its noise, not the sums, which are made again to the bit.
    One that has lost its memory leaves the course: its sums would get other noise. Moments that are kept begin anew
    with each set. With a model that has not the network `sums_once` there is nothing to make, and clients train as in
    FedAvg.
    """

    starts_anew: ClassVar[bool] = False
    # The network's name. Guards look for it in a method's very class: no edge has a part in what leaves a client but by
    # these sums.
    sums_once: ClassVar[str] = ""

    def require_able(self, client: GraphClient) -> None:
        """Refuse personal parameters, sampled neighbours, and tasks on anything but nodes, where there are sums."""
        if network_of(client.model, self.sums_once) is None:
            return
        require_classes_of_nodes(client, "sums over neighbours are made once for nodes")
        require_whole_graph(client, "sums over neighbours are made once, and of all of them")
        if client.own:
            raise BadInput(
                f"sums are made by the same network everywhere, and {sorted(client.own)[0]} is personal: leave shared "
                "out"
            )

    @on(TrainModel)
    def train(self, request: TrainModel, client: GraphClient) -> ModelUpdate:
        """Train what was received on the sums that there are; the rest of the model stands still."""
        self.require_able(client)
        sent, number = request.params, len(_made(client))
        moving = [name in sent for name, slot in client.model.named_parameters() if slot.requires_grad]
        optimizer = self.optimizer if all(moving) else only(self.optimizer, moving)
        moments = f"optimizer {number}" if number else "optimizer"
        fitted = self.fit({**self._rest(client, sent), **sent}, client, optimizer=optimizer, moments=moments)
        return ModelUpdate({name: fitted.params[name] for name in sent}, self.weight(client))

    @on(SumNeighbors)
    def sum_neighbors(self, request: SumNeighbors, client: GraphClient) -> Kept:
        """Take note of what the next sums are made of; they are made when needed, and never in another way."""
        self.require_able(client)
        made = _made(client)
        network = network_of(client.model, self.sums_once)
        left = () if network is None else network.summed_by[len(made) :]
        if not left:
            raise BadInput(f"{client.id} has made its sums for this course: a second time would tell more of its edges")
        named = {name for name in client.model.state_dict() if name.startswith(f"gnn.{left[0]}")}
        if request.encoder.keys() != named:
            raise BadInput(
                f"{client.id} makes its next sums, set {len(made) + 1}, by {left[0]}*, and was sent "
                f"{sorted(request.encoder)[:3]}; each set is made once, in its turn"
            )
        found = memory_of_sums(request.encoder, client, self._hiding(client), len(made))
        _settle(client, len(made), found)
        client.state = {**client.state, MEMORY: (*made, found)}
        return Kept()

    @on(EvaluateModel)
    def evaluate(self, request: EvaluateModel, client: GraphClient) -> Evaluation:
        """Evaluate the model on the client's sums."""
        if network_of(client.model, self.sums_once) is None:
            return super().evaluate(request, client)
        memory: State = self.best_memory(client.state) if request.best else client.state
        load_params(client.model, client.complete(self.client_params(request.params, memory)))
        return Evaluation(*client.task.evaluate(client.model, self.data_of(client), request.splits))

    def data_of(self, client: GraphClient) -> object:
        """Return the client's sums as the head reads them; before they are made, its data without edges."""
        if network_of(client.model, self.sums_once) is None:
            return client.prepared
        made = _made(client)
        return with_sums(client, made, self._hiding(client)) if made else own_rows(client.prepared)

    def _rest(self, client: GraphClient, sent: Params) -> Params:
        """Return the rest of a model: what sums were made by, and zeros for what has no part yet; refuse another stage.

        Who has not made its sums would else learn from none.
        """
        network = network_of(client.model, self.sums_once)
        if network is None:
            return {}
        made = _made(client)
        kept: Params = {name: slot for each in made for name, slot in each["encoder"].items()}
        later = tuple(f"gnn.{part}" for part in network.idle(len(made)))
        idle = {name: slot for name, slot in client.model.state_dict().items() if name.startswith(later)}
        odd = sorted(
            (client.model.state_dict().keys() - idle.keys() - kept.keys() - sent.keys()) | (idle.keys() & sent.keys())
        )
        if odd:
            raise BadInput(
                f"{client.id} has made {len(made)} of {len(network.summed_by)} sets of sums, and this is for "
                f"another stage: {', '.join(odd[:3])}"
            )
        return {**{name: torch.zeros_like(slot) for name, slot in idle.items()}, **kept}

    @staticmethod
    def _hiding(client: GraphClient) -> NoisySums | None:
        return None if client.guards is None else client.guards.noisy_sums


def _made(client: GraphClient) -> tuple[State, ...]:
    made: tuple[State, ...] = client.state.get(MEMORY, ())
    return made


def _settle(client: GraphClient, number: int, memory: State) -> None:
    """See that sums are made once also where a server takes a client's memory back to before them."""
    if client.book is None:
        return
    # A setup that was interrupted comes again, and must be the same.
    what = f"what set {number + 1} of neighbours of {client.course} is added up by"
    client.book.settle_for_good(what, digest({"memory": memory}))

"""FedGRL without federation: every client learns an encoder of its own from its own graph, a baseline.

"No-Fed-Self" of Suresh, Godbout, Mukherjee, Shrivastava, Neville and Li (2022), section 5.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from isthmus.algorithms.fedgrl.encoder_learning import EncoderLearning, FedGRLState
from isthmus.core.errors import CourseFailed
from isthmus.core.federation import Federation
from isthmus.core.protocol import Kept, Request, on
from isthmus.core.record import Params
from isthmus.learn.graph_client import GraphClient


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

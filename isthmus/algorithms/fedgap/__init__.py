"""GAP in a federation: FedAvg of a head on sums over neighbours that each client made once. Sajadmanesh et al. (2023).

S. Sajadmanesh, A. S. Shamsabadi, A. Bellet, D. Gatica-Perez, "GAP: differentially private graph neural networks with
aggregation perturbation", USENIX Security 2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from isthmus.algorithms.fedavg import TrainModel
from isthmus.algorithms.fedgap.summed_once import SummedOnce, SumNeighbors
from isthmus.core.errors import refuse
from isthmus.core.federation import Federation
from isthmus.core.folds import Fold, weighted_mean
from isthmus.core.record import Params, Record

ENCODER = "gnn.encoder."


@dataclass(frozen=True)
class HeadState(Record):
    """What the server keeps."""

    params: Params
    """The head, which the rounds train; the whole model where it has no such encoder."""
    encoder: Params
    """The encoder, as the setup left it."""


@dataclass(frozen=True)
class FedGAP(SummedOnce[HeadState]):
    """Clients train an encoder without edges, make sums over neighbours once, and train a head on these sums alone.

        setup:  server -> client  TrainModel(params)              `encoder_rounds` times, as if there were no edge
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

    Scores on the global graph, in a simulation, are of the head on the sums of that graph without noise. With a model
    that has no such network there is nothing to make once, and it is FedAvg.

    Fields:
        encoder_rounds: rounds of FedAvg without edges in the setup
        local_steps, step_unit, optimizer, weighting, keep_moments, fold: as in FedAvg
    """

    encoder_rounds: int = 30
    fold: Fold = weighted_mean

    # What guards look for in this very class: all that leaves a client is what `fit` gave, and what was said above.
    tells_only_models: ClassVar[bool] = True
    sums_once: ClassVar[str] = "GAP"

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(self.encoder_rounds < 0, self, "encoder_rounds", "it must be at least 0")

    def setup(self, fed: Federation) -> HeadState:
        """Learn the encoder without edges, and have every client make its sums."""
        params = dict(fed.initial_params)
        names = [name for name in params if name.startswith(ENCODER)]
        if not names:
            fed.note("the model's graph network is not 'gap', so there are no sums to be made once: this is FedAvg")
            return HeadState(params, {})
        for _ in range(self.encoder_rounds):
            params = dict(fed.ask_folded(TrainModel(params), self.fold).params)
        encoder = {name: params.pop(name) for name in names}
        fed.ask(SumNeighbors(encoder))
        return HeadState(params, encoder)

    def round(self, state: HeadState, fed: Federation) -> HeadState:
        """Send the head out, take the mean back."""
        return HeadState(fed.ask_folded(TrainModel(state.params), self.fold).params, state.encoder)

    def global_params(self, state: HeadState) -> Params:
        """Return encoder and head."""
        return {**state.encoder, **state.params}

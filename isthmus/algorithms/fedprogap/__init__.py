"""ProGAP in a federation: one stage after the other by FedAvg, on noisy sums of what the stage before it learned.

S. Sajadmanesh, D. Gatica-Perez, "ProGAP: progressive graph neural networks with differential privacy guarantees", WSDM
2024.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from isthmus.algorithms.fedavg import TrainModel
from isthmus.algorithms.fedgap.summed_once import SummedOnce, SumNeighbors
from isthmus.core.errors import refuse
from isthmus.core.federation import Federation
from isthmus.core.folds import Fold, weighted_mean
from isthmus.core.record import Params, Record

BASES = "gnn.bases."


@dataclass(frozen=True)
class StageState(Record):
    """What the server keeps."""

    params: Params
    """What the rounds train: the head and all bases, or the last one; the whole model where it has no stages."""
    fixed: Params
    """The bases that stay as earlier stages left them."""


@dataclass(frozen=True)
class FedProGAP(SummedOnce[StageState]):
    """Clients train a network stage by stage; between two stages each adds up over its edges, once.

        setup:  for stage k = 0 ... hops - 1, without edges at first:
                server -> client  TrainModel(bases 0 ... k, head)     `stage_rounds` times
                client -> server  ModelUpdate(params, weight)         the server sees only the weighted mean
                server -> client  SumNeighbors(base k)
                client -> server  Kept()
        round:  server -> client  TrainModel(bases 0 ... hops, head)
                client -> server  ModelUpdate(params, weight)         the server sees only the weighted mean

    It is for the network `progap` (isthmus.models.gnn.progap). After stage k every client embeds what it has by the
    bases that the server has then, adds up these embeddings over its own edges, and keeps the sums for all stages to
    come, which train the earlier bases further, but make no sums anew. With the guard edge_dp or node_dp there is noise
    on each set of sums, from the client's own secret: hops of them whatever the number of rounds, as in GAP, where an
    encoder is learned without edges and never again. Each set is made once: another SumNeighbors of it is refused.

    The head begins anew with every stage. Without hops there is one stage, and it is FedAvg of a perceptron. On
    another graph, such as the global one of a simulation, sums are made by the bases as they are in the end, without
    noise; with `layerwise` these are the ones that they were made by in training too.

    Fields:
        stage_rounds: rounds of FedAvg of each stage but the last, which the course's rounds train
        layerwise:    whether a stage trains its own base and the head, and earlier bases stay as they are
        local_steps, step_unit, optimizer, weighting, keep_moments, fold: as in FedAvg
    """

    stage_rounds: int = 30
    layerwise: bool = False
    fold: Fold = weighted_mean

    # What guards look for in this very class: all that leaves a client is what `fit` gave, and what was said above.
    tells_only_models: ClassVar[bool] = True
    sums_once: ClassVar[str] = "ProGAP"

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(self.stage_rounds < 0, self, "stage_rounds", "it must be at least 0")

    def setup(self, fed: Federation) -> StageState:
        """Train all stages but the last, and have every client make its sums after each."""
        params = dict(fed.initial_params)
        head = {name: params[name] for name in params if not name.startswith(BASES)}
        bases = _bases(params)
        if not bases:
            fed.note("the model's graph network is not 'progap', so there are no stages: this is FedAvg")
            return StageState(params, {})
        fixed: Params = {}
        stage = {**bases[0], **head}
        for base, following in pairwise(bases):
            for _ in range(self.stage_rounds):
                stage = dict(fed.ask_folded(TrainModel(stage), self.fold).params)
            fed.ask(SumNeighbors({name: stage[name] for name in base}))
            if self.layerwise:
                fixed = {**fixed, **{name: stage.pop(name) for name in base}}
            stage = {**stage, **following, **head}
        return StageState(stage, fixed)

    def round(self, state: StageState, fed: Federation) -> StageState:
        """Send the last stage out, take the mean back."""
        return StageState(fed.ask_folded(TrainModel(state.params), self.fold).params, state.fixed)

    def global_params(self, state: StageState) -> Params:
        """Return all bases and the head."""
        return {**state.fixed, **state.params}


def _bases(params: Params) -> list[Params]:
    """Return the parameters of each base, in the order of the stages."""
    found: dict[int, Params] = {}
    for name, slot in params.items():
        if name.startswith(BASES):
            found.setdefault(int(name.removeprefix(BASES).split(".")[0]), {})[name] = slot
    return [found[stage] for stage in sorted(found)]

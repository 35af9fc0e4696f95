"""Fine-tuning: whoever is evaluated first trains the global model a little further on its own data.

The oldest way to personal models: Wang, Mathews, Kiddon, Eichner, Beaufays and Ramage (2019), "Federated evaluation of
on-device personalization"; Yu, Bagdasaryan and Shmatikov (2020), "Salvaging federated learning by local adaptation".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from isthmus.algorithms.fedavg import FedAvg
from isthmus.core.errors import refuse
from isthmus.core.protocol import Algorithm, EvaluateModel, Evaluation, ModelState, StateT, on
from isthmus.core.record import Params
from isthmus.learn.graph_client import GraphClient
from isthmus.learn.optimizers import Optimizer


@dataclass(frozen=True)
class FineTuned(Algorithm[StateT]):
    """Put before another algorithm, it gives every client a model of its own whenever the course evaluates.

        @dataclass(frozen=True)
        class FedProxFT(FineTuned[ModelState], FedProx):
            '''FedProx, fine-tuned.'''

    The other algorithm's rounds are as they were: nothing that is tuned goes into a message, and what a client keeps in
    mind for training is not touched. At an evaluation each client takes `tune_steps` steps from the model that it would
    use otherwise, on its own training examples, in the graph that the other algorithm trains on (FedSage+: the mended
    one); the outcome is evaluated, and is its model of that round. So the best round is the best by tuned models.
    Evaluating takes as long as training then: choose `evaluate_every` accordingly.

    A client's memory: `tuned`, and what the other algorithm keeps; both go back together to those of the best round.

    Fields:
        tune_steps:     steps before an evaluation, counted in batches
        tune_optimizer: how they are taken, started anew every time; None for the other algorithm's `optimizer`
    """

    personal: ClassVar[tuple[str, ...]] = ("tuned",)

    tune_steps: int = 4
    tune_optimizer: Optimizer | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        """Join what both algorithms list as personal."""
        super().__init_subclass__(**options)
        if "personal" not in vars(cls):
            listed = [name for parent in cls.__mro__[1:] for name in vars(parent).get("personal", ())]
            cls.personal = tuple(dict.fromkeys(listed))

    def __post_init__(self) -> None:
        if hasattr(super(), "__post_init__"):
            super().__post_init__()  # type: ignore[misc]
        refuse(self.tune_steps < 1, self, "tune_steps", "it must be at least 1")
        if not isinstance(self._tuner, Optimizer):
            raise ValueError(f"tune_optimizer is null, but {type(self).__name__} has no optimizer of its own; give one")

    @property
    def _tuner(self) -> Optimizer:
        found: Optimizer = self.tune_optimizer or getattr(self, "optimizer", None)  # type: ignore[assignment]
        return found

    def client_params(self, params: Params, state: Mapping[str, Any]) -> Params:
        """Return the model that was tuned last; without one, what the other algorithm has."""
        tuned: Params | None = state.get("tuned")
        return super().client_params(params, state) if tuned is None else tuned

    def untuned(self, params: Params, client: GraphClient) -> Params:
        """Return the whole model from which a client begins to tune."""
        memory = {name: entry for name, entry in client.state.items() if name != "tuned"}
        whole = client.complete(super().client_params(params, memory))
        return {name: whole[name] for name in client.model.state_dict()}

    @on(EvaluateModel)
    def evaluate(self, request: EvaluateModel, client: GraphClient) -> Evaluation:
        """Tune, and evaluate what came of it; for the best round it is there already."""
        if not request.best:
            start = self.untuned(request.params, client)
            data = self.data_of(client)
            tuned = client.fit(start, steps=self.tune_steps, optimizer=self._tuner, prepared=data)
            client.state = {**client.state, "tuned": tuned.params}
        reply: Evaluation = super().evaluate(request, client)
        return reply


@dataclass(frozen=True)
class FedAvgFT(FineTuned[ModelState], FedAvg):
    """FedAvg whose clients tune the global model on their own data before they are evaluated with it.

        round:       server -> client  TrainModel(params)
                     client -> server  ModelUpdate(params, weight)     the server sees only the weighted mean
        evaluation:  as always, of v_k: the received w after `tune_steps` steps down F_k

    A client's memory: `tuned` (v_k), and what FedAvg keeps.

    Fields:
        tune_steps, tune_optimizer: as in FineTuned
        local_steps, step_unit, optimizer, weighting, keep_moments: as in FedAvg
    """

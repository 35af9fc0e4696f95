"""APFL: every client uses a mixture of the global model and one of its own. Deng, Kamani and Mahdavi, 2020.

"Adaptive personalized federated learning".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from isthmus.algorithms.fedavg import FedAvg, ModelUpdate, TrainModel
from isthmus.core.errors import refuse
from isthmus.core.protocol import on
from isthmus.core.record import Params
from isthmus.learn.graph_client import GraphClient
from isthmus.learn.optimizers import Optimizer, OptimizerState
from isthmus.learn.steps import copied, gradients, load_params


@dataclass(frozen=True)
class APFL(FedAvg):
    """Clients train the global model as in FedAvg, and their own part of a mixture with it.

        round:  server -> client  TrainModel(params)
                client -> server  ModelUpdate(params, weight)     the server sees only the weighted mean

    Client k begins a round with the received w_k = w and with its own v_k, and takes `local_steps` steps, each on one
    batch for both:

        w_k <- w_k - lr F_k'(w_k)
        v_k <- v_k - lr alpha_k F_k'(m_k)        m_k = alpha_k v_k + (1 - alpha_k) w_k, both before the step

    alpha_k F_k'(m_k) is the slope by v_k. w_k goes into the mean, so the global model is FedAvg's; v_k is never sent.
    The model that a client uses is alpha_k v_k + (1 - alpha_k) w with the latest global w. With alpha = 0 that is
    FedAvg; with alpha = 1 it is what `local` trains, if every client is asked in every round.

    With `alpha_lr` above 0, alpha_k follows its own slope, once a round at the first step, and stays in [0, 1]:

        alpha_k <- alpha_k - alpha_lr <v_k - w, F_k'(m_k)>

    A client that trains for the first time begins v_k with the model it received. One that has not trained yet, or has
    no training examples, uses the global model. Parameters that the course does not share are mixed in the same way,
    of the client's values in w_k and in v_k. Batch norm statistics of w_k are those of its own passes, v_k's are those
    of m_k's, and a client uses their mixture. Clients answer one by one in simulation.

    A client's memory: `model` (v_k), `alpha` (alpha_k), `own_optimizer` (the moments of v_k, if they are kept), and
    what FedAvg keeps.

    Fields:
        alpha:    alpha_k at first: the share of the client's own model
        alpha_lr: the learning rate of alpha_k; 0 leaves it as it is
        local_steps, step_unit, optimizer, weighting: as in FedAvg; v_k has the same optimiser
        keep_moments: whether the optimisers of both models go on from round to round
    """

    personal: ClassVar[tuple[str, ...]] = ("model", "alpha")

    alpha: float = 0.5
    alpha_lr: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(not 0.0 <= self.alpha <= 1.0, self, "alpha", "it must be in [0, 1]")
        refuse(not 0.0 <= self.alpha_lr < float("inf"), self, "alpha_lr", "it must be at least 0")

    def client_params(self, params: Params, state: Mapping[str, Any]) -> Params:
        """Return the mixture of the global model and the client's own; the global one for a client that has none."""
        base = super().client_params(params, state)
        return mixture(base, state["model"], state["alpha"]) if "model" in state else base

    @on(TrainModel)
    def train(self, request: TrainModel, client: GraphClient) -> ModelUpdate:
        """Train the received model for the server, and the client's part of the mixture."""
        received = client.complete(request.params)
        w = _Model(client, received, self.optimizer, self._moments(client, "optimizer"))
        v = _Model(client, client.state.get("model", received), self.optimizer, self._moments(client, "own_optimizer"))
        alpha: float = client.state.get("alpha", self.alpha)
        generator = client.generator("fit")
        epoch = client.task.batches_per_epoch(client.prepared, client.batching) if self.step_unit == "epoch" else 1
        batches = client.task.batches(client.prepared, client.batching, generator)
        for step, batch in zip(range(self.local_steps * epoch), batches, strict=False):
            # Both passes drop the same units, so that with alpha = 1 this is training alone to the bit.
            dice = torch.Generator().set_state(generator.get_state())
            slope = w.slope(w.trained, batch, generator)
            mixed = [torch.lerp(a, b, alpha) for a, b in zip(w.trained, v.trained, strict=True)]
            mixed_slope = v.slope(mixed, batch, dice)
            scaled = [alpha * grad for grad in mixed_slope]
            if step == 0:
                alpha = self._next_alpha(alpha, w, v, mixed_slope)
            w.step(slope)
            v.step(scaled)
        if client.num_examples:
            client.state = {**client.state, "model": v.params, "alpha": alpha}
        if self.keep_moments:
            client.state = {**client.state, "optimizer": w.state, "own_optimizer": v.state}
        return ModelUpdate(client.keep_personal(w.params, request.params), self.weight(client))

    def _moments(self, client: GraphClient, entry: str) -> OptimizerState | None:
        return client.state.get(entry) if self.keep_moments else None

    def _next_alpha(self, alpha: float, w: _Model, v: _Model, slope: list[Tensor]) -> float:
        if not self.alpha_lr:
            return alpha
        rise = sum(float(((b - a) * g).sum()) for a, b, g in zip(w.trained, v.trained, slope, strict=True))
        return min(1.0, max(0.0, alpha - self.alpha_lr * rise))


def mixture(base: Params, own: Params, alpha: float) -> Params:
    """Return (1 - alpha) base + alpha own; whole numbers are those of the larger share."""
    return {
        name: torch.lerp(w, own[name], alpha) if w.is_floating_point() else (own[name] if alpha > 0.5 else w)
        for name, w in base.items()
    }


class _Model:
    """One of a client's two models in training, with the moments and the buffers that are its own."""

    def __init__(self, client: GraphClient, start: Params, optimizer: Optimizer, state: OptimizerState | None) -> None:
        self.client, self.optimizer = client, optimizer
        self.slots = {name: slot for name, slot in client.model.named_parameters() if slot.requires_grad}
        self.trained = [start[name].clone() for name in self.slots]
        self.others = {name: tensor for name, tensor in start.items() if name not in self.slots}
        self.state = optimizer.start(self.trained) if state is None else copied(state)
        self.lr = optimizer.lr * optimizer.schedule.factor(max(client.position.round, 1))

    def slope(self, trained: list[Tensor], batch: Any, generator: torch.Generator) -> list[Tensor]:
        """Return the slope of the loss at `trained`; the pass moves this model's buffers."""
        model = self.client.model
        load_params(model, {**dict(zip(self.slots, trained, strict=True)), **self.others})
        found = gradients(self.client.task.loss(model, batch, generator), list(self.slots.values()))
        now = model.state_dict()
        self.others = {name: now[name].detach().clone() for name in self.others}
        return found

    def step(self, slope: list[Tensor]) -> None:
        """Take a step of the optimiser."""
        with torch.no_grad():
            self.optimizer.step(self.trained, slope, self.state, self.lr)

    @property
    def params(self) -> Params:
        """The whole model, in the order of the module."""
        found = {**dict(zip(self.slots, self.trained, strict=True)), **self.others}
        return {name: found[name] for name in self.client.model.state_dict()}

"""APFL: every client uses a mixture of the global model and one of its own. Deng, Kamani and Mahdavi, 2020.

"Adaptive personalized federated learning".
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from isthmus.algorithms.fedavg import FedAvg, ModelUpdate, TrainModel
from isthmus.core.client import Work
from isthmus.core.errors import refuse
from isthmus.core.protocol import on
from isthmus.core.record import Params
from isthmus.core.replies import StackedParams
from isthmus.learn.graph_client import GraphClient
from isthmus.learn.optimizers import Optimizer, OptimizerState, copied, gradients, load_params
from isthmus.learn.together.layouts import Weights
from isthmus.learn.together.stacked_clients import Beside, GraphCohort, StackedFit
from isthmus.learn.together.stacked_features import Start, starts_of


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
    of m_k's, and a client uses their mixture.

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
        memory = client.state
        kept = self.keep_moments
        work = TrainMixture(
            request.params,
            memory.get("model", client.complete(request.params)),
            memory.get("alpha", self.alpha),
            self,
            memory.get("optimizer") if kept else None,
            memory.get("own_optimizer") if kept else None,
        )
        found: Mixed = client.do(work)
        if client.num_examples:
            client.state = {**client.state, "model": found.own, "alpha": found.alpha}
        if kept:
            client.state = {**client.state, "optimizer": found.state(), "own_optimizer": found.own_state()}
        return ModelUpdate(found.params, self.weight(client))

    def next_alpha(self, alpha: float, rise: float) -> float:
        """Return alpha_k after a step, where its slope is `rise`."""
        return min(1.0, max(0.0, alpha - self.alpha_lr * rise))


def mixture(base: Params, own: Params, alpha: float) -> Params:
    """Return (1 - alpha) base + alpha own; whole numbers are those of the larger share."""
    return {
        name: torch.lerp(w, own[name], alpha) if w.is_floating_point() else (own[name] if alpha > 0.5 else w)
        for name, w in base.items()
    }


# ---- both models' training, for one client and for many


class Mixed(NamedTuple):
    """What became of a client's two models; the moments are made where somebody wants them."""

    params: Params
    own: Params
    alpha: float
    state: Callable[[], OptimizerState]
    own_state: Callable[[], OptimizerState]


@dataclass(frozen=True, eq=False)
class TrainMixture(Work):
    """Training of w_k from `params` and of v_k from `own`, with the moments that both go on from."""

    params: Params
    own: Params
    alpha: float
    algorithm: APFL
    state: OptimizerState | None
    own_state: OptimizerState | None

    def kind(self) -> Hashable:
        """Return what is the same for all clients that train together."""
        return type(self), self.algorithm, tuple(self.params), self.state is None, self.own_state is None

    def alone(self, client: GraphClient) -> Mixed:
        """Train one client."""
        algorithm, alpha = self.algorithm, self.alpha
        w = _Model(client, client.complete(self.params), algorithm.optimizer, self.state)
        v = _Model(client, self.own, algorithm.optimizer, self.own_state)
        generator = client.generator("fit")
        unit = client.task.batches_per_epoch(client.prepared, client.batching) if algorithm.step_unit == "epoch" else 1
        batches = client.task.batches(client.prepared, client.batching, generator)
        for step, batch in zip(range(algorithm.local_steps * unit), batches, strict=False):
            # Both passes drop the same units, so that with alpha = 1 this is training alone to the bit.
            dice = torch.Generator().set_state(generator.get_state())
            slope = w.slope(w.trained, batch, generator)
            mixed = [torch.lerp(a, b, alpha) for a, b in zip(w.trained, v.trained, strict=True)]
            mixed_slope = v.slope(mixed, batch, dice)
            scaled = [alpha * grad for grad in mixed_slope]
            if step == 0 and algorithm.alpha_lr:
                pairs = zip(w.trained, v.trained, mixed_slope, strict=True)
                alpha = algorithm.next_alpha(alpha, sum(float(((b - a) * g).sum()) for a, b, g in pairs))
            w.step(slope)
            v.step(scaled)
        sent = client.keep_personal(w.params, self.params)
        return Mixed(sent, v.params, alpha, lambda: w.state, lambda: v.state)

    @staticmethod
    def together(clients: GraphCohort, works: Sequence[TrainMixture]) -> Sequence[Mixed]:
        """Train many clients as one: v_k and its moments lie beside w_k."""
        if not clients.clients[0].num_examples:
            return [work.alone(client) for client, work in zip(clients, works, strict=True)]
        first, algorithm = works[0], works[0].algorithm
        states = None if first.state is None else [_joined(work.state, work.own_state) for work in works]
        shares = _Shares(starts_of([work.own for work in works]), [work.alpha for work in works], algorithm)
        starts = [work.params for work in works]
        fitted = clients.fit(
            starts[0] if all(start is starts[0] for start in starts) else starts,
            steps=algorithm.local_steps,
            step_unit=algorithm.step_unit,
            optimizer=algorithm.optimizer,
            optimizer_states=states,
            beside=shares,
        )
        own = StackedParams(fitted.beside or {}, len(works)).members()
        states_of = [partial(_half, fitted, position) for position in range(len(works))]
        return [
            Mixed(each.params, mine, alpha, partial(half, 0), partial(half, 1))
            for each, mine, alpha, half in zip(fitted.members(), own, shares.alphas, states_of, strict=True)
        ]


class _Shares(Beside):
    """The clients' own models and shares: losses at m_k, whose slope by v_k is alpha_k F_k'(m_k)."""

    def __init__(self, starts: Mapping[str, Start], alphas: Sequence[float], algorithm: APFL) -> None:
        self.starts, self.alphas, self.algorithm = starts, list(alphas), algorithm
        self._order: Sequence[int] = ()
        self._share = torch.empty(0)

    def begin(self, order: Sequence[int]) -> None:
        """Put the shares into order; that of a first step is to be learnt, where the method learns it."""
        self._order = order
        self._share = self._placed().requires_grad_(self.algorithm.alpha_lr > 0)

    def losses(self, weights: Weights, run: Callable[[Mapping[str, Tensor]], Tensor]) -> Tensor:
        """Return each client's loss at its mixture."""
        found = run(weights.mixed(self._share.to(weights.moved[0].device)[: weights.number]))
        return found

    @property
    def further(self) -> list[Tensor]:
        """The shares, at the first step."""
        return [self._share] if self._share.requires_grad else []

    def learn(self, slopes: Sequence[Tensor]) -> None:
        """Move the shares."""
        for slope in slopes:
            for k, rise in zip(self._order, slope.tolist(), strict=True):
                self.alphas[k] = self.algorithm.next_alpha(self.alphas[k], rise)
            self._share = self._placed()

    def _placed(self) -> Tensor:
        return torch.tensor([self.alphas[k] for k in self._order])


def _joined(state: OptimizerState | None, own: OptimizerState | None) -> OptimizerState | None:
    """Return the moments of both models as those of one that has the parameters of both."""
    if state is None or own is None:
        return None
    return {key: (*value, *own[key]) if isinstance(value, tuple) else value for key, value in state.items()}


def _half(fitted: StackedFit, position: int, half: int) -> OptimizerState:
    """Return one model's moments of both."""
    state = fitted.optimizer_states[position]
    found: OptimizerState = {}
    for key, value in state.items():
        number = len(value) // 2 if isinstance(value, tuple) else 0
        found[key] = value[half * number : (half + 1) * number] if isinstance(value, tuple) else value
    return found


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

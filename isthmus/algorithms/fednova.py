"""FedNova: clients that take different numbers of steps count by their direction, not by how far they went.

Wang, Liu, Liang, Joshi and Poor (2020), "Tackling the objective inconsistency problem in heterogeneous federated
optimization".
"""

from __future__ import annotations

from dataclasses import dataclass

from isthmus.core.errors import BadInput, refuse
from isthmus.core.federation import Federation
from isthmus.core.folds import Fold, weighted_mean
from isthmus.core.protocol import MAX_STATISTIC, Known, ModelState, Request, grown, on, unlike
from isthmus.core.record import Params, Record
from isthmus.learn.graph_client import GraphClient, LocalTraining
from isthmus.learn.optimizers import SGD, proximal

# More steps than any number of batches makes in a round.
MAX_STEPS = 1e9


@dataclass(frozen=True)
class NormalizedChange(Record):
    """How a client's model changed per step."""

    change: Params
    """What local training added, divided by `steps`; alone it would reveal much, so the server asks for the mean."""
    buffers: Params
    """What no gradient moves, such as batch norm statistics, after training."""
    steps: float
    """|a_k|, how many plain steps the client's were worth; with epochs it says how many batches the client has."""
    weight: float
    """The client's share in the mean: its number of training examples, or of nodes."""


@dataclass(frozen=True)
class TrainNormalized(Request[NormalizedChange]):
    """Asks a client to train the global model and to tell its change per step."""

    params: Params
    """The global model."""
    max_steps: float = 0.0
    """The most plain steps that a client's can be worth; 0 where that depends on its number of batches."""

    def misfit(self, reply: NormalizedChange, known: Known) -> str:
        """Return how changes or buffers differ from the model that was sent."""
        moved = {name: w for name, w in self.params.items() if name not in known.buffers}
        kept = {name: w for name, w in self.params.items() if name in known.buffers}
        return unlike("change", reply.change, moved) or unlike("buffers", reply.buffers, kept)

    def limits(self, known: Known) -> dict[str, float]:
        """Return how large changes, buffers and numbers of steps may be."""
        steps = self.max_steps or MAX_STEPS
        return {"change": grown(self.params), "buffers": MAX_STATISTIC, "steps": steps * (1.0 + 1e-9)}


@dataclass(frozen=True)
class FedNova(LocalTraining[ModelState]):
    """Clients send their change per step; the server goes the mean number of steps along the mean of those.

        round:  server -> client  TrainNormalized(params)
                client -> server  NormalizedChange(change, buffers, steps, weight)
                                                                               the server sees only the weighted mean

    With n_k the weights and w_k what client k made of w in tau_k steps:

        d_k = (w_k - w) / |a_k|                          the client
        w <- w + mean(|a_k|) mean(d_k)                   the server; means weighted by n_k

    |a_k| is the sum of the factors with which the gradients of the steps entered w - w_k, over lr: tau_k for plain
    SGD. For SGD with momentum rho, and with the proximal term of FedProx, it is what the method would move, over lr, if
    every gradient were 1:

        b <- rho b + 1 - mu lr a,   a <- a + b           tau_k times, from a = b = 0

    which with mu = 0 is the paper's (tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho), and with rho = 0 its
    (1 - (1 - lr mu)^tau) / (lr mu). With both, a swings about 1 / (mu lr) and may be less than a single step; with a
    momentum above 0.96 and a strong pull it can come back to 0 or beyond, and a client whose steps undo each other like
    that refuses to train. Adam's steps are about equally long, so |a_k| is tau_k there. Buffers (batch norm statistics)
    take the weighted mean.

    Clients take different numbers of steps where a step is an epoch and batches are a part of the examples, or where
    clients have settings of their own. Where all take the same number, this is FedAvg (FedProx with mu > 0).
    |a_k| counts from the start of the round, so moments cannot be kept from round to round.

    Fields:
        mu: strength of a proximal term mu/2 |w_k - w|^2 in the clients' loss
        local_steps, step_unit, optimizer, weighting, fold: as in FedAvg
        keep_moments: False, see above
    """

    mu: float = 0.0
    fold: Fold = weighted_mean

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(not 0.0 <= self.mu < float("inf"), self, "mu", "it must be at least 0")
        if self.keep_moments:
            raise ValueError(
                "keep_moments is True; FedNova counts a client's steps from the start of a round, so moments must "
                "start anew with it: leave keep_moments at False"
            )
        if self.mu * self.optimizer.lr >= 1.0:
            raise ValueError(
                f"mu is {self.mu!r} and the optimiser's lr {self.optimizer.lr!r}; a step would leave the proximal "
                "term's minimum behind: their product must be below 1"
            )

    # ---- server

    def setup(self, fed: Federation) -> ModelState:
        """Start from the course's initial model."""
        return ModelState(fed.initial_params)

    def round(self, state: ModelState, fed: Federation) -> ModelState:
        """Send the model out, go the mean number of steps along the mean change per step."""
        mean = fed.ask_folded(TrainNormalized(state.params, self.max_steps), self.fold)
        moved = {name: state.params[name] + mean.steps * d for name, d in mean.change.items()}
        return ModelState({name: moved[name] if name in moved else mean.buffers[name] for name in state.params})

    @property
    def max_steps(self) -> float:
        """The largest |a_k| there can be; 0 where it depends on how many batches a client has.

        Momentum makes the factor of a gradient at most 1 / (1 - rho), and a proximal term makes it no larger than that
        of its swing.
        """
        if self.step_unit != "batch":
            return 0.0
        momentum = self.optimizer.momentum if type(self.optimizer) is SGD else 0.0
        return self.local_steps / (1.0 - momentum) ** 2

    # ---- client

    @on(TrainNormalized)
    def train(self, request: TrainNormalized, client: GraphClient) -> NormalizedChange:
        """Train the received model; tell the change per step."""
        fitted = self.fit(request.params, client, penalty=proximal(self.mu, request.params))
        steps = self.accumulated(fitted.steps, client)
        names = [name for name, _ in client.model.named_parameters()]
        per_step = 1.0 / (steps or 1.0)
        change = client.combined((per_step, fitted.params), (-per_step, request.params), names=names)
        buffers = client.combined((1.0, fitted.params), names=[n for n in fitted.params if n not in names])
        return NormalizedChange(change, buffers, steps, self.weight(client))

    def accumulated(self, steps: int, client: GraphClient) -> float:
        """Return |a_k| of so many steps in this round; above 0 unless there are none."""
        if type(self.optimizer) is not SGD:
            return float(steps)
        pull = self.mu * self.optimizer.lr * self.optimizer.schedule.factor(max(client.position.round, 1))
        moved = velocity = 0.0
        for _ in range(steps):
            velocity = self.optimizer.momentum * velocity + 1.0 - pull * moved
            moved += velocity
        if steps and moved <= 0.0:
            raise BadInput(
                f"with momentum {self.optimizer.momentum!r} and mu times lr {pull:g}, {steps} steps undo each other, "
                "and there is no change per step; choose a smaller momentum, a smaller mu or another local_steps"
            )
        return moved

"""FedEx: hyper-parameters are tuned within one course, by weight sharing. Khodak et al., 2021."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from isthmus.algorithms.fedavg import FedAvg, TrainModel
from isthmus.core.errors import refuse
from isthmus.core.federation import Federation
from isthmus.core.folds import weighted_mean
from isthmus.core.protocol import LOWER_IS_BETTER, Algorithm, Known, ModelState, Request, grown, on, unlike
from isthmus.core.record import Params, Record
from isthmus.learn.graph_client import GraphClient

MAX_ARMS = 1024
MAX_LOSS = 1e6
MAX_SHARE = 1e6
ROUNDING = 1e-6  # of the largest sum: what sums in whole numbers of 32 bits may be wrong by


@dataclass(frozen=True)
class ArmUpdate(Record):
    """A client's model after training as one arm says, and how good that arm was for it."""

    params: Params
    """The client's parameters; alone they would reveal much about its graph, so the server asks for their mean."""
    chosen: Tensor
    """(arms,): validation examples by training examples for the arm that was drawn, 0 for the others."""
    losses: Tensor
    """(arms,): the same times the validation loss after training."""
    weight: float
    """The client's share in the mean: its number of training examples, or of nodes."""


@dataclass(frozen=True)
class TrainAsDrawn(Request[ArmUpdate]):
    """Asks a client to draw an arm, and to train the global model as it says."""

    params: Params
    """The global model."""
    theta: Tensor
    """(arms,): the probability of each."""

    def misfit(self, reply: ArmUpdate, known: Known) -> str:
        """Return how the model differs from the one that was sent, or what is said of arms that there are not."""
        for name in ("chosen", "losses"):
            found = getattr(reply, name)
            if found.shape != self.theta.shape or found.dtype != self.theta.dtype:
                sent = f"there are {len(self.theta)} arms, {self.theta.dtype}"
                return f"{name} has shape {tuple(found.shape)} of {found.dtype}; {sent}"
        return unlike("params", reply.params, self.params)

    def problem(self, reply: ArmUpdate) -> str:
        """Return what one client cannot say of its arm."""
        if int((reply.chosen != 0).sum()) > 1 or bool((reply.losses[reply.chosen == 0] != 0).any()):
            return "it tells of more than one arm"
        return "chosen is negative" if bool((reply.chosen < 0).any()) else ""

    def limits(self, known: Known) -> dict[str, float]:
        """Return how large numbers may be."""
        return {"params": grown(self.params), "chosen": MAX_SHARE, "losses": MAX_SHARE * MAX_LOSS}


@dataclass(frozen=True)
class ArmState(ModelState):
    """The global model, and what is known of the arms."""

    theta: Tensor
    """(arms,): the probability of each."""
    squares: float
    """The sum over rounds of the largest gradient's square."""
    past: float
    """The discounted sum of the mean losses so far."""
    rounds: float
    """The discounted number of rounds in it."""


@dataclass(frozen=True)
class FedEx(Algorithm[ArmState]):
    """Clients draw how they train; what did well is drawn more often. The model is one for all, so nothing is wasted.

        round:  server -> client  TrainAsDrawn(params, theta)
                client -> server  ArmUpdate(params, chosen, losses, weight)     the server sees only the weighted mean

    Client k draws an arm c_k from theta, trains as it says, and has the loss l_k on its v_k validation examples. With
    b the discounted mean of the losses of rounds before (in the first round, of this one):

        g_j <- sum_k v_k (l_k - b) [c_k = j] / (theta_j sum_k v_k)
        theta_j <- theta_j exp(-eta g_j), then all are divided by their sum
        eta = sqrt(2 ln n) / sqrt(sum over rounds of max_j g_j^2), with n arms

    Both sums are parts of a weighted mean, so that a secure sum can serve them: nobody but the client knows its arm.
    With one arm it is the method that it is around. Most clients say nothing of most arms, so that behind a guard with
    a robust fold, such as the median, theta stays where it is.

    Fields:
        inner:    the method around which it is: one whose round is FedAvg's
        rates:    factors of the learning rate of `inner`
        steps:    local steps; empty: those of `inner`
        decays:   weight decays; empty: that of `inner`. The arms are all combinations of these three
        metric:   what is measured on validation examples
        discount: how much a round before counts in the baseline; 0: only the last one, 1: all the same
        settled:  with less entropy than this theta goes to its likeliest arm and stays there
    """

    starts_anew: ClassVar[bool] = True

    inner: Algorithm[Any] = FedAvg()
    rates: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0)
    steps: tuple[int, ...] = ()
    decays: tuple[float, ...] = ()
    metric: str = "loss"
    discount: float = 0.9
    settled: float = 1e-4

    def __post_init__(self) -> None:
        kind = type(self.inner)
        if not issubclass(kind, FedAvg) or kind.round is not FedAvg.round or kind.train is not FedAvg.train:
            raise ValueError(
                f"inner is {kind.__name__}, whose round is another than FedAvg's; FedAvg and FedProx will do"
            )
        fold = getattr(self.inner, "fold", weighted_mean)
        if fold != weighted_mean:
            raise ValueError(f"inner.fold is {fold!r}, but what is known of arms are sums; leave it out")
        refuse(not self.rates, self, "rates", "it needs a factor, [1.0] for none")
        refuse(not 0.0 <= self.discount <= 1.0, self, "discount", "it must be from 0 to 1")
        refuse(self.settled < 0, self, "settled", "it must be at least 0")
        if self.num_arms > MAX_ARMS:
            raise ValueError(f"rates, steps and decays make {self.num_arms} arms, the limit is {MAX_ARMS}")
        for place in range(self.num_arms):
            self.arm(place)

    @property
    def num_arms(self) -> int:
        """How many arms there are."""
        return len(self.rates) * max(1, len(self.steps)) * max(1, len(self.decays))

    def arm(self, place: int) -> FedAvg:
        """Return the inner method as an arm has it; decays run fastest."""
        inner = self.inner
        assert isinstance(inner, FedAvg)
        optimizer = inner.optimizer
        every = itertools.product(
            self.rates, self.steps or (inner.local_steps,), self.decays or (optimizer.weight_decay,)
        )
        rate, steps, decay = next(itertools.islice(every, place, None))
        lr = optimizer.lr if rate == 1.0 else optimizer.lr * rate
        return replace(inner, local_steps=steps, optimizer=replace(optimizer, lr=lr, weight_decay=decay))

    # ---- server

    def setup(self, fed: Federation) -> ArmState:
        """Start from the course's initial model, all arms as likely."""
        theta = torch.full((self.num_arms,), 1.0 / self.num_arms, dtype=torch.float64)
        return ArmState(fed.initial_params, theta, 0.0, 0.0, 0.0)

    def round(self, state: ArmState, fed: Federation) -> ArmState:
        """Take the mean model, and a step of theta along what the arms' losses say."""
        mean = fed.ask_folded(TrainAsDrawn(state.params, state.theta), weighted_mean)
        after = self.moved(state, mean)
        best, before = int(after.theta.argmax()), int(state.theta.argmax())
        if best != before:
            fed.note(f"the likeliest arm is {self.told(best)}, with the probability {float(after.theta[best]):.3f}")
        return after

    def moved(self, state: ArmState, mean: ArmUpdate) -> ArmState:
        """Return the state after a round with this mean."""
        total = float(mean.chosen.sum())
        if not total > 0.0:  # nobody has validation examples
            return replace(state, params=mean.params)
        loss = float(mean.losses.sum()) / total
        baseline = state.past / state.rounds if state.rounds else loss
        past, rounds = self.discount * state.past + loss, self.discount * state.rounds + 1.0
        alone = float(state.theta.max()) == 1.0
        expected = baseline * mean.chosen
        gap = mean.losses - expected
        # Steps are measured by the largest gradient so far, so what rounding leaves of none would be as large as any.
        rounding = ROUNDING * torch.maximum(mean.losses.abs(), expected.abs()).max()
        gap = torch.where(gap.abs() > rounding, gap, 0.0)
        gradient = gap / (total * state.theta.clamp_min(1e-300))
        squares = state.squares + (0.0 if alone else float(gradient.abs().max()) ** 2)
        theta = state.theta
        if not alone and squares > 0.0:
            eta = math.sqrt(2.0 * math.log(self.num_arms)) / math.sqrt(squares)
            theta = self._settled(torch.softmax(theta.log() - eta * gradient, dim=0))
        return ArmState(mean.params, theta, squares, past, rounds)

    def _settled(self, theta: Tensor) -> Tensor:
        entropy = -float(torch.special.xlogy(theta, theta).sum())
        if entropy >= self.settled:
            return theta
        return torch.zeros_like(theta).index_fill(0, theta.argmax(), 1.0)

    def told(self, place: int) -> str:
        """Return an arm in words."""
        arm = self.arm(place)
        return f"lr={arm.optimizer.lr:g} local_steps={arm.local_steps} weight_decay={arm.optimizer.weight_decay:g}"

    # ---- client

    @on(TrainAsDrawn)
    def train(self, request: TrainAsDrawn, client: GraphClient) -> ArmUpdate:
        """Draw an arm, train as it says, and see how the model does on validation examples."""
        drawn = int(torch.multinomial(request.theta.cpu(), 1, generator=client.generator("arm")))
        arm = self.arm(drawn)
        params = arm.fit(request.params, client, penalty=arm.penalty(TrainModel(request.params), client)).params
        weight = arm.weight(client)
        metrics, counts = client.evaluate(params, ("val",))
        chosen, losses = torch.zeros_like(request.theta), torch.zeros_like(request.theta)
        value = metrics["val"].get(self.metric)
        if value is not None and weight > 0:
            share = min(counts["val"] / weight, MAX_SHARE)
            loss = value if self.metric in LOWER_IS_BETTER else -value
            chosen[drawn] = share
            losses[drawn] = share * min(max(loss, -MAX_LOSS), MAX_LOSS)
        return ArmUpdate(params, chosen, losses, weight)

"""A new federated method in one file: clients with a lower loss weigh more."""

from dataclasses import dataclass

import isthmus as ist


@dataclass(frozen=True)
class ScoredUpdate(ist.Record):
    """A client's model, with the weight that its training loss earns it."""

    params: ist.Params
    """The client's parameters; the server sees only their mean."""
    weight: float
    """Examples divided by (training loss + tau); the server sees only the sum."""


@dataclass(frozen=True)
class TrainAndScore(ist.Request[ScoredUpdate]):
    """Asks a client to train the global model and to say how well that went."""

    params: ist.Params
    """The global model."""


@dataclass(frozen=True)
class FedConfident(ist.Algorithm[ist.ModelState]):
    """FedAvg in which a client counts for more when its training loss is low; `tau` is how gently."""

    local_steps: int = 4
    tau: float = 1.0

    def setup(self, fed: ist.Federation) -> ist.ModelState:
        """Start from the initial model."""
        return ist.ModelState(fed.initial_params)

    def round(self, state: ist.ModelState, fed: ist.Federation) -> ist.ModelState:
        """Send the model out, take the weighted mean back."""
        mean = fed.ask_folded(TrainAndScore(state.params), ist.weighted_mean)
        return ist.ModelState(mean.params)

    @ist.on(TrainAndScore)
    def train(self, request: TrainAndScore, client: ist.GraphClient) -> ScoredUpdate:
        """Train on the client's own graph."""
        fitted = client.fit(request.params, steps=self.local_steps, optimizer=ist.SGD(lr=0.25, weight_decay=5e-4))
        weight = client.num_examples / (fitted.loss + self.tau) if client.num_examples else 0.0
        return ScoredUpdate(fitted.params, weight)


if __name__ == "__main__":
    result = ist.run(ist.Course(algorithm=FedConfident(tau=0.5), rounds=50))
    print(f"test accuracy on the whole graph: {result.score():.4f}")

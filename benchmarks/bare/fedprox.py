"""FedProx (Li et al., 2020), bare."""

from __future__ import annotations

from bare.nodes import STEPS, NodeClient, NodeLoop

MU = 0.01


class FedProxLoop(NodeLoop):
    """FedAvg with the slope of mu/2 |w - w_global|^2 added to the gradients."""

    def train(self, number: int, client: NodeClient) -> None:
        """Take the steps."""
        optimizer = self.setting.adam(client.net)
        for _ in range(STEPS):
            optimizer.zero_grad()
            client.loss().backward()
            for name, weight in client.net.named_parameters():
                weight.grad.add_(weight.detach() - self.weights[name], alpha=MU)
            optimizer.step()

"""FedAvg (McMahan et al., 2017), bare."""

from __future__ import annotations

from bare.nodes import STEPS, NodeClient, NodeLoop


class FedAvgLoop(NodeLoop):
    """Every client takes some steps of Adam."""

    def train(self, number: int, client: NodeClient) -> None:
        """Take the steps."""
        optimizer = self.setting.adam(client.net)
        for _ in range(STEPS):
            optimizer.zero_grad()
            client.loss().backward()
            optimizer.step()

"""How long a round would take elsewhere: bandwidth, and waiting for the slowest. After FedHPO-Bench, Wang et al., 2023.

    seconds = max(n down / B_server, down / B_down) + up / B_up + c (1 + 1/2 + ... + 1/n) + s

n clients take part; each is sent `down` bytes by a server that shares its bandwidth among them, and sends `up` bytes;
it computes for a time that is exponentially distributed with the mean c, of n of which the largest is expected after c
times the n-th harmonic number. s is the server's own time.
"""

from __future__ import annotations

from dataclasses import dataclass

from isthmus.core.errors import refuse

MEGABIT = 1e6 / 8  # bytes


@dataclass(frozen=True)
class CostModel:
    """What a network and its clients are like.

    Fields:
        server_mbit:    megabits per second that the server sends, to all together
        down_mbit:      that a client receives
        up_mbit:        that a client sends
        slowdown:       a client's computer takes so many times as long as this one
        server_seconds: that the server computes in a round
    """

    server_mbit: float = 100.0
    down_mbit: float = 10.0
    up_mbit: float = 2.5
    slowdown: float = 1.0
    server_seconds: float = 0.0

    def __post_init__(self) -> None:
        for name in ("server_mbit", "down_mbit", "up_mbit"):
            refuse(not getattr(self, name) > 0, self, name, "it must be positive")
        for name in ("slowdown", "server_seconds"):
            refuse(getattr(self, name) < 0, self, name, "it must be at least 0")

    def round_seconds(self, clients: int, down: float, up: float, client_seconds: float) -> float:
        """Return how long a round takes; `down` and `up` are the bytes of one client."""
        sent = max(clients * down / (self.server_mbit * MEGABIT), down / (self.down_mbit * MEGABIT))
        slowest = self.slowdown * client_seconds * sum(1 / place for place in range(1, clients + 1))
        return sent + up / (self.up_mbit * MEGABIT) + slowest + self.server_seconds

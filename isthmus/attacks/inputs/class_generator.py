"""A representative of each class by a generator that is trained against the model, round by round.

Hitaj, Ateniese and Perez-Cruz, "Deep models under the GAN: Information leakage from collaborative deep learning"
(CCS 2017), without its lies: the client trains and sends what it should.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from isthmus.attacks.attack import NothingSeen, Seen
from isthmus.attacks.inputs.class_means import ClassRepresentative, Features, asked, log_odds
from isthmus.core.errors import refuse
from isthmus.core.protocol import Position, Request
from isthmus.core.random import torch_generator
from isthmus.core.record import Params
from isthmus.learn.optimizers import Adam

NOISE = 16  # numbers that are drawn for a node
HIDDEN = 64
# How near to the ends of their range features begin.
LEAST = 1e-4


@dataclass(frozen=True)
class ClassGenerator(ClassRepresentative):
    """Trains G(noise, class) so that each model that the client is sent takes what G makes for that class.

        minimise over G:   - mean log p(class | x) + nearness mean (x - mean)^2 / (high - low)^2,   x = G(noise, class)

    The representative is the mean of what G makes. It begins with the mean features of all.

    Fields:
        every:    one model of so many is used
        steps:    of Adam against each
        batch:    nodes of each class that are made at once
        rate:     Adam's learning rate
        nearness: what being far from the mean features counts, in all features together
        client:   whose messages it has; without it, the first one's
    """

    reads: ClassVar[tuple[str, ...]] = ("params",)

    every: int = 5
    steps: int = 20
    batch: int = 8
    rate: float = 0.003
    nearness: float = 1.0
    client: str = ""

    def __post_init__(self) -> None:
        for name in ("every", "steps", "batch"):
            refuse(getattr(self, name) < 1, self, name, "it must be at least 1")
        refuse(not self.rate > 0.0, self, "rate", "it must be positive")
        refuse(self.nearness < 0.0, self, "nearness", "it may not be negative")

    def wants(self, at: Position, request: type[Request[Any]]) -> bool:
        """Return that it is about some rounds."""
        return at.round >= 1 and (at.round - 1) % self.every == 0

    def guess(self, seen: Seen, known: Features) -> Tensor:
        """Return the mean of what the generator makes at the end."""
        models = list(models_of(seen))
        if not models:
            raise NothingSeen("the client was sent no model")
        draw = torch_generator(0, "generator of classes")
        generator = Generator(known, draw)
        adam = Adam(lr=self.rate)
        state = adam.start(generator.params)
        for params in models:
            model = asked(seen.course, known, params)
            for _ in range(self.steps):
                loss = self._loss(generator, model, known, draw)
                slopes = list(torch.autograd.grad(loss, generator.params))
                with torch.no_grad():
                    adam.step(generator.params, slopes, state, self.rate)
        with torch.no_grad():
            return generator.made(64, draw).view(known.classes, 64, -1).mean(dim=1)

    def _loss(self, generator: Generator, model: Any, known: Features, draw: torch.Generator) -> Tensor:
        x = generator.made(self.batch, draw)
        classes = torch.arange(known.classes).repeat_interleave(self.batch)
        sure = log_odds(model, x)[torch.arange(len(x)), classes].double()
        far = ((x - known.mean) / known.width).square().sum(dim=1)
        found: Tensor = (self.nearness * far - sure).mean()
        return found


class Generator:
    """Two linear maps with relu between them, of noise and a class, on top of the mean features' log-odds."""

    def __init__(self, known: Features, draw: torch.Generator) -> None:
        self.known = known
        share = ((known.mean - known.low) / known.width).clamp(LEAST, 1.0 - LEAST)
        self.start = torch.logit(share)
        sizes = (NOISE + known.classes, HIDDEN), (HIDDEN, len(known.mean))
        first, second = (torch.randn(*size, dtype=torch.float64, generator=draw) / size[0] ** 0.5 for size in sizes)
        self.params = [first.requires_grad_(), (0.1 * second).requires_grad_()]

    def made(self, number: int, draw: torch.Generator) -> Tensor:
        """Return so many nodes of each class, class after class, (nodes, features)."""
        classes = torch.eye(self.known.classes, dtype=torch.float64).repeat_interleave(number, dim=0)
        noise = torch.randn(len(classes), NOISE, dtype=torch.float64, generator=draw)
        first, second = self.params
        hidden = (torch.cat([noise, classes], dim=1) @ first).relu()
        found: Tensor = self.known.low + self.known.width * (self.start + hidden @ second).sigmoid()
        return found


def models_of(seen: Seen) -> Iterator[Params]:
    """Yield the models that the client was sent, one for each round."""
    rounds = set()
    for message in seen.messages:
        params = getattr(message.request, "params", None)
        if params and message.at.round not in rounds:
            rounds.add(message.at.round)
            yield params

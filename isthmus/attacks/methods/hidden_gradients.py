"""GFL-APPNP's gradients of hidden representations: a weight of a feature has none where no sample has the feature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from isthmus.algorithms.gfl_appnp import GFLAPPNP
from isthmus.algorithms.gfl_appnp.hosted import Hosted, bare
from isthmus.algorithms.gfl_appnp.messages import HiddenShare, ShareHidden
from isthmus.attacks.attack import CURIOUS_SERVER, Case, Estimating, Message, NothingSeen, Seen
from isthmus.attacks.measures import mean_of
from isthmus.config.course import Course
from isthmus.core.protocol import Position, Request
from isthmus.core.record import Params
from isthmus.learn.optimizers import load_params
from isthmus.runs.simulation import build_model, dims_of


@dataclass(frozen=True, eq=False)
class Usual:
    """The mean of all features, (features,), their mean length, and how many inputs and outputs models have."""

    mean: Tensor
    length: float
    dims: tuple[int, int]


@dataclass(frozen=True)
class HiddenGradients(Estimating):
    """Reads the direction of each node's features off the gradients of its hidden representation.

    The gradient of h_c of one sample by the first matrix is the outer product of its features and what comes back to
    the first layer, so its first singular vector is the features but for their length and sign; of a node with several
    samples it is what most of the change is made of. The sign is that for which the model that was sent gives what was
    told of the node. What is scored is the cosine to the node's features, in the mean over its samples.
    """

    position: ClassVar[str] = CURIOUS_SERVER
    learns: ClassVar[str] = "the features of each node that a client hosts, but for their length"
    knows: ClassVar[str] = "the mean and the usual length of nodes' features"
    reads: ClassVar[tuple[str, ...]] = ("gradients", "hidden")
    measures: ClassVar[tuple[str, ...]] = ("cosine", "above 0.99")

    def problem(self, course: Course) -> str:
        """Return that no gradients are sent."""
        if not isinstance(course.algorithm, GFLAPPNP) or course.algorithm.gradients == "none":
            return f"{type(course.algorithm).__name__} sends no gradients of hidden representations (gfl_appnp)"
        return ""

    def wants(self, at: Position, request: type[Request[Any]]) -> bool:
        """Return that it is about the first sharing."""
        return issubclass(request, ShareHidden) and at.round <= 1

    def known(self, case: Case) -> Usual:
        """Return the mean of all features, and their mean length."""
        hosted = Hosted.of_prepared(case.course.task.prepare(case.scenario.whole))
        x = hosted.dense_x.double()
        return Usual(x.mean(dim=0), float(x.norm(dim=1).mean()), dims_of(case.course, case.scenario.whole, "all"))

    def guess(self, seen: Seen, known: Usual) -> dict[str, Tensor]:
        """Return what the gradients say of each node, (nodes, features) by client."""
        found: dict[str, Tensor] = {}
        for message in seen.messages:
            reply, client = message.reply, message.clients[0]
            if len(message.clients) == 1 and isinstance(reply, HiddenShare) and reply.gradients and client not in found:
                directions = known.length * read(reply.gradients, len(known.mean))
                found[client] = self._turned(seen, known, message, directions)
        if not found:
            raise NothingSeen("no gradients of hidden representations are seen")
        return found

    def _turned(self, seen: Seen, known: Usual, message: Message, directions: Tensor) -> Tensor:
        """Return directions with the sign for which the model gives what was told, (nodes, features)."""
        model = build_model(seen.course, *known.dims)
        load_params(model, {**model.state_dict(), **message.request.params})  # type: ignore[attr-defined]
        told: Tensor = message.reply.hidden.double()  # type: ignore[attr-defined]
        with torch.no_grad():
            said = [model(bare(sign * directions.float()), None).double() for sign in (1.0, -1.0)]
        likely = [torch.nn.functional.cosine_similarity(each, told) for each in said]
        return torch.where((likely[0] >= likely[1]).unsqueeze(1), directions, -directions)

    def prior(self, known: Usual, clients: Sequence[str]) -> dict[str, Tensor]:
        """Return the mean for every node."""
        return dict.fromkeys(clients, known.mean.unsqueeze(0))

    def truth(self, case: Case, known: Usual) -> dict[str, Tensor]:
        """Return the features of each node: the mean over its samples."""
        found = {}
        for client, part in case.scenario.parts.items():
            hosted = Hosted.of_prepared(case.course.task.prepare(part))
            found[client] = hosted.means(hosted.dense_x).double()
        return found

    def scores(self, guess: Mapping[str, Tensor], truth: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the cosine in the mean over nodes that have features, and how many are above 0.99."""
        found = []
        for client, x in truth.items():
            if client not in guess:
                continue  # its gradients were not asked for
            mine = guess[client].expand(len(x), -1)
            counts = x.norm(dim=1) > 0
            found += torch.nn.functional.cosine_similarity(mine[counts], x[counts]).tolist()
        return {"cosine": mean_of(found), "above 0.99": mean_of([float(each > 0.99) for each in found])}


def read(gradients: Params, number: int) -> Tensor:
    """Return the direction of each node's features, but for its sign, (nodes, features)."""
    first = next((t for t in gradients.values() if t.ndim == 4 and number in t.shape[2:]), None)
    if first is None:
        raise NothingSeen("no gradient has a number for each feature")
    by_feature = first if first.shape[2] == number else first.transpose(2, 3)  # (nodes, classes - 1, features, outputs)
    wide = by_feature.double().permute(0, 2, 1, 3).flatten(2)  # (nodes, features, ...)
    directions: Tensor = torch.linalg.svd(wide, full_matrices=False)[0][:, :, 0]
    return directions

"""Local training whose steps hide single examples. Abadi et al. (2016), "Deep learning with differential privacy".

    g = (1 / (q n)) (sum over drawn i of clip(grad l_i(w), C) + N(0, z^2 C^2)),   each i of n drawn with probability q

An example is a graph, or the row of a node where the model sees no edges. The noise and who is drawn come from the
client's own secret. How many examples a client has is taken for known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from isthmus.core.client import NotTogether, Work
from isthmus.core.errors import BadInput
from isthmus.core.guards.hiding import STEPS_TAKEN, PrivateSteps
from isthmus.core.record import State
from isthmus.learn.graph_client import Fit, Fitted, GraphClient, mean_of_steps, with_drift
from isthmus.learn.optimizers import copied, gradients, load_params, read_params
from isthmus.learn.tasks.graph_task import GraphBatch, PreparedGraphs
from isthmus.learn.tasks.node_classification import NodeBatch, NodeClassification, PreparedNodes
from isthmus.models.gnn.gap import RowsAlone
from isthmus.models.inputs import GraphInput
from isthmus.models.parts import BiasFreeLinear, LayerStack, Linear
from isthmus.models.products.sparse import Features, SparseMatrix, dense

# Gradients are made shorter by so much more, so that rounding leaves none longer than it may be.
MARGIN = 1e-6


@dataclass(frozen=True, eq=False)
class PrivateFit(Work):
    """Training by steps that hide examples: what was asked for, and how the steps are taken."""

    asked: Fit
    steps: PrivateSteps

    def kind(self) -> Hashable:
        """Return what is the same for all clients that are trained together: they never are."""
        return type(self)

    @staticmethod
    def together(clients: Any, works: Sequence[PrivateFit]) -> Sequence[Fitted]:
        """Refuse: each example's gradient is taken alone."""
        raise NotTogether("the gradients of examples are clipped one by one")

    def alone(self, client: GraphClient) -> Fitted:
        """Train one client."""
        asked = self.asked
        if asked.envelope is not None:
            raise BadInput("steps within steps see an example several times; example_dp counts it once: use FedAvg")
        prepared = client.prepared if asked.prepared is None else asked.prepared
        number = asked.steps * (self.steps.per_epoch if asked.step_unit == "epoch" else 1)
        load_params(client.model, client.complete(asked.params))
        _require_no_statistics(client.model)
        examples = Examples.of(client.model, prepared)
        first = self._counted(client, number) if len(examples) else 0
        found = self._taken(client, examples, number if len(examples) else 0, first)
        params = client.keep_personal(found.params, asked.params)
        return replace(found, params=params)

    def _counted(self, client: GraphClient, number: int) -> int:
        """Take note of so many steps, and return how many this answer had before; refuse more than are agreed on."""
        at, before = client.position, client.state.get(STEPS_TAKEN, {})
        here = (
            before.get("taken", 0) if before.get("round") == at.round and before.get("exchange") == at.exchange else 0
        )
        if here + number > self.steps.most:
            raise BadInput(
                f"an answer would take {here + number} steps on examples, and {self.steps.most} are agreed on: set "
                "steps of the guard, or algorithm.local_steps"
            )
        in_all = before.get("in_all", 0) + number
        found: State = {"round": at.round, "exchange": at.exchange, "taken": here + number, "in_all": in_all}
        client.state = {**client.state, STEPS_TAKEN: found}
        return here

    def _taken(self, client: GraphClient, examples: Examples, number: int, first: int) -> Fitted:
        asked = self.asked
        named = {name: slot for name, slot in client.model.named_parameters() if slot.requires_grad}
        live: list[Tensor] = list(named.values())
        state = asked.optimizer.start(live) if asked.optimizer_state is None else copied(asked.optimizer_state)
        sums = [torch.zeros_like(slot) for slot in live] if asked.mean_gradients else None
        drift = asked.added_drift()
        lr = asked.optimizer.lr * asked.optimizer.schedule.factor(max(client.position.round, 1))
        loss: Callable[..., Tensor] = asked.loss or client.task.loss
        generator = client.generator(asked.purpose)
        for step in range(first, first + number):
            grads = self._noisy(client, examples, live, loss, generator, f"{asked.purpose} {step}")
            with torch.no_grad():
                if sums is not None:
                    torch._foreach_add_(sums, grads)
            if asked.penalty is not None:
                grads = [g + p for g, p in zip(grads, gradients(asked.penalty(named), live), strict=True)]
            with torch.no_grad():
                asked.optimizer.step(live, with_drift(grads, named, drift), state, lr)
        means = mean_of_steps(named, sums, number, asked.params)
        # The loss on the examples that were drawn is theirs: nobody is told.
        return Fitted(read_params(client.model), math.nan, number, lambda: state, means)

    def _noisy(
        self,
        client: GraphClient,
        examples: Examples,
        live: list[Tensor],
        loss: Callable[..., Tensor],
        generator: torch.Generator,
        name: str,
    ) -> list[Tensor]:
        """Return the noisy mean of the drawn examples' clipped gradients, by the number that is expected of them."""
        steps, before = self.steps, {"params": tuple(slot.detach() for slot in live)}
        chance = client.protecting(f"examples {name}", before).uniform((len(examples),))
        drawn = (chance < steps.fraction).nonzero().flatten().tolist() if steps.fraction < 1 else range(len(examples))
        total = examples.summed(drawn, live, loss, generator, steps.clip)
        stream = client.protecting(f"gradients {name}", {"sum": tuple(total)})
        expected = steps.fraction * len(examples)
        spread = steps.noise * steps.clip
        for slot in total:
            if spread:
                slot.add_(spread * stream.normal(slot.shape).to(slot.device))
            slot.div_(expected)
        return total


class Examples:
    """A client's training examples, one by one, each a batch that no other example has a part in."""

    def __init__(
        self,
        model: nn.Module,
        items: Sequence[int],
        batch_of: Callable[[int], Any],
        rows_of: Callable[[Sequence[int]], NodeBatch] | None = None,
    ) -> None:
        self.model, self.items, self.batch_of, self.rows_of = model, items, batch_of, rows_of

    def __len__(self) -> int:
        return len(self.items)

    @classmethod
    def of(cls, model: nn.Module, prepared: Any) -> Examples:
        """Return the examples of a client's data; refuse those of which one is in another's gradient."""
        if isinstance(prepared, PreparedGraphs):
            train, y = prepared.index["train"], prepared.data.y
            return cls(model, train.tolist(), lambda i: GraphBatch(prepared.pile.batch(train.new_tensor([i])), y[[i]]))
        if not isinstance(prepared, PreparedNodes):
            raise BadInput(
                "examples can be hidden one by one where they are graphs, or nodes whose model sees no edges"
            )
        if not (isinstance(prepared.graph, RowsAlone) or _without_edges(model)):
            raise BadInput(
                "the model reads edges, so a node is in the gradients of its neighbours too, and example_dp would not "
                "hide it; use model.gnn.name=gap with algorithm.name=fedgap (or progap with fedprogap) and the guard "
                "node_dp, or mlp"
            )
        graph, labels = prepared.graph, prepared.labels["train"]
        nodes = prepared.index["train"].tolist()

        def rows_of(places: Sequence[int]) -> NodeBatch:
            rows = _rows(graph, [nodes[place] for place in places])
            return NodeBatch(rows, torch.arange(len(places), device=labels.device), labels[list(places)])

        return cls(model, range(len(nodes)), lambda place: rows_of([place]), rows_of)

    def summed(
        self,
        drawn: Sequence[int],
        live: list[Tensor],
        loss: Callable[..., Tensor],
        generator: torch.Generator,
        clip: float,
    ) -> list[Tensor]:
        """Return the sum of the drawn examples' gradients, each of which is no longer than `clip`.

        Rows of one batch that linear maps alone make are taken together, where the loss is known to be a mean of
        theirs: a row's gradient by W is h (dl/dz)^T with z = h W + b, so that its length is that of both factors.
        """
        mean_of_rows = getattr(loss, "__func__", None) is NodeClassification.loss
        if drawn and self.rows_of is not None and mean_of_rows:
            found = _of_rows(self.model, self.rows_of(drawn), live, loss, generator, clip)
            if found is not None:
                return found
        total = [torch.zeros_like(slot) for slot in live]
        for grads in self.clipped(drawn, live, loss, generator, clip):
            torch._foreach_add_(total, grads)
        return total

    def clipped(
        self,
        drawn: Sequence[int],
        live: list[Tensor],
        loss: Callable[..., Tensor],
        generator: torch.Generator,
        clip: float,
    ) -> Iterator[list[Tensor]]:
        """Yield the gradient of each drawn example, no longer than `clip`."""
        for place in drawn:
            grads = gradients(loss(self.model, self.batch_of(self.items[place]), generator), live)
            length = torch.stack([g.double().square().sum() for g in grads]).sum().sqrt()
            if not bool(length.isfinite()):
                continue  # nothing is what an example counts for that has no gradient
            scale = float((clip * (1.0 - MARGIN) / length.clamp(min=1e-300)).clamp(max=1.0))
            yield [g * scale for g in grads]


def _of_rows(
    model: nn.Module,
    batch: NodeBatch,
    live: list[Tensor],
    loss: Callable[..., Tensor],
    generator: torch.Generator,
    clip: float,
) -> list[Tensor] | None:
    """Return the sum of rows' clipped gradients; None where a parameter is no linear map's, or one is used twice."""
    maps = [part for part in model.modules() if type(part) in (Linear, BiasFreeLinear)]
    if {id(slot) for slot in live} - {id(slot) for part in maps for slot in part.parameters()}:
        return None
    calls: list[tuple[nn.Module, Tensor, Tensor]] = []
    hooks = [part.register_forward_hook(lambda of, given, out: calls.append((of, given[1], out))) for part in maps]
    try:
        total = loss(model, batch, generator) * len(batch.labels)
    finally:
        for hook in hooks:
            hook.remove()
    if len({id(part) for part, *_ in calls}) < len(calls):
        return None
    slopes = torch.autograd.grad(total, [out for *_, out in calls])  # of each map, (rows, out)
    given = [(part, dense(h).detach(), slope) for (part, h, _), slope in zip(calls, slopes, strict=True)]
    squares = [_square(slope) * (_square(h) + hasattr(part, "bias")) for part, h, slope in given]
    length = torch.stack(squares).sum(dim=0).sqrt()  # (rows,)
    share = (clip * (1.0 - MARGIN) / length.clamp(min=1e-300)).clamp(max=1.0)
    known = length.isfinite().unsqueeze(1)
    found: dict[int, Tensor] = {}
    for part, h, slope in given:
        scaled = torch.where(known, slope * share.unsqueeze(1).to(slope.dtype), 0.0)
        found[id(part.weight)] = torch.where(known, h, 0.0).T @ scaled
        if hasattr(part, "bias"):
            found[id(part.bias)] = scaled.sum(dim=0)
    return [found.get(id(slot), torch.zeros_like(slot)) for slot in live]


def _square(rows: Tensor) -> Tensor:
    """Return the squared length of each row, in double precision."""
    return rows.double().square().sum(dim=1)


def _rows(graph: GraphInput, nodes: list[int]) -> GraphInput:
    """Return some nodes' rows of a graph, without an edge, as a graph of the same kind."""
    x: Features = graph.x
    if isinstance(x, SparseMatrix):
        rows = torch.zeros(len(nodes), x.shape[1], device=x.values.device)
        for place, node in enumerate(nodes):
            first, end = int(x.pattern.crow[node]), int(x.pattern.crow[node + 1])
            rows[place, x.pattern.col[first:end].long()] = x.values[first:end]
    else:
        rows = x[nodes]
    return graph.of_nodes(rows, nodes) if isinstance(graph, RowsAlone) else GraphInput(rows, graph.edge_index[:, :0])


def _without_edges(model: nn.Module) -> bool:
    """Whether a model is a perceptron on each node's own features, whatever edges there are."""
    network = getattr(model, "gnn", None)
    return type(network) is LayerStack and all(type(layer) is Linear for layer in network.layers)


def _require_no_statistics(model: nn.Module) -> None:
    names = [name for name, _ in model.named_buffers()]
    if names:
        raise BadInput(
            f"the model has statistics of all examples together ({names[0]}), which no clipping of one hides; set "
            "model.gnn.batch_norm=false"
        )

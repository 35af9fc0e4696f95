"""The search for the graph whose gradient was seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from isthmus.attacks.inputs.dense import DenseGCN, bias, mixing, weight
from isthmus.attacks.inputs.grain.blocks import (
    Kinds,
    Span,
    blocks,
    counted,
    hidden_rows,
    in_span,
    present,
    second_rows,
    shares_of,
    wider,
)
from isthmus.attacks.inputs.grain.gluing import Budget, Glued, Gluing, Piece, first_right
from isthmus.attacks.inputs.grain.small_graph import SmallGraph

OUTPUT = "decoder.layers.{}.{}"


@dataclass(frozen=True)
class Limits:
    """How far a search goes, in numbers of things, so that it does not depend on the machine.

    Fields:
        nodes:  of a graph
        kinds:  of nodes that are left by the first span; with more nothing is tried
        tries:  neighbourhoods of a kind
        wide:   pieces of two hops
        steps:  of depth-first search
        checks: graphs whose gradient is compared
    """

    nodes: int = 80
    kinds: int = 400
    tries: int = 200_000
    wide: int = 20_000
    steps: int = 50_000
    checks: int = 30


# Of scores, and of what their gradient is said to be, the loss.
LossOf = Callable[[Tensor, Tensor], Callable[[Tensor], Tensor]]


@dataclass(frozen=True, eq=False)
class Sought:
    """A gradient, and the model that it is of.

    Fields:
        params, gradient: by name, in double precision
        loss_of:          makes a loss of scores and of what their gradient is: its labels are read off that
        rank:             directions that are shorter than this share of the longest are rounding
        tolerance:        rows lie in a span if no more than this share of their length does not
        fits:             a graph is right if its gradient is off by no more than this share of its length
    """

    model: DenseGCN
    params: Mapping[str, Tensor]
    gradient: Mapping[str, Tensor]
    loss_of: LossOf
    rank: float
    tolerance: float
    fits: float
    limits: Limits


def rebuilt(sought: Sought, kinds: Kinds) -> SmallGraph | None:
    """Return the graph that has the gradient, or None if none was found within the limits."""
    found = nodes_of(sought, kinds)
    if not len(found) or len(found) > sought.limits.kinds:
        return None
    second = Span.of(sought.gradient[weight(1)], sought.rank)
    pieces = blocks(
        found, sought.params[weight(0)], sought.params[bias(0)], second, sought.tolerance, sought.limits.tries
    )
    if not pieces:
        return None
    return _of_pooled(sought, found, pieces) if sought.model.pooled else _of_nodes(sought, found, pieces)


def nodes_of(sought: Sought, kinds: Kinds) -> Kinds:
    """Return the kinds of nodes that lie in the span of the first layer's gradient."""
    first = sought.gradient[weight(0)]
    return in_span(present(kinds, first, sought.rank), Span.of(first, sought.rank), sought.tolerance)


def _of_pooled(sought: Sought, kinds: Kinds, pieces: Sequence[Piece]) -> SmallGraph | None:
    """Return the graph whose nodes' rows, with their neighbours' neighbours, add up to what the decoder read."""
    limits = sought.limits
    wide = wider(pieces, limits.wide)
    if not wide:
        return None
    first = hidden_rows(kinds, pieces, sought.params[weight(0)], sought.params[bias(0)])
    rows = second_rows(first, pieces, wide, sought.params[weight(1)], sought.params[bias(1)])
    pooled = what_was_pooled(sought)
    counts = counted(shares_of(rows, pooled), rows, pooled, limits.nodes, sought.model.pooled == "mean")
    kept = [place for place, count in enumerate(counts) if count]
    if not kept:
        return None
    gluing = Gluing([wide[k] for k in kept], Budget(limits.steps), [counts[k] for k in kept], False, limits.nodes)
    return _first_right(sought, gluing, kinds, [pieces[wide[k].label].label for k in kept])


def what_was_pooled(sought: Sought) -> Tensor:
    """Return what the decoder's first map read of a graph, (width,): its gradient is that times the bias'."""
    by_weight, by_bias = (sought.gradient[OUTPUT.format(0, name)] for name in ("weight", "bias"))
    return by_weight @ by_bias / by_bias.square().sum().clamp_min(1e-300)


def _of_nodes(sought: Sought, kinds: Kinds, pieces: Sequence[Piece]) -> SmallGraph | None:
    """Return the graph of nodes with scores: first with each kind once, as a text's words are nobody else's."""
    limits = sought.limits
    for once in (True, False):
        gluing = Gluing(pieces, Budget(limits.steps // 2), None, once, limits.nodes)
        found = _first_right(sought, gluing, kinds, [piece.label for piece in pieces])
        if found is not None:
            return found
    return None


def _first_right(sought: Sought, gluing: Gluing, kinds: Kinds, kind_of: Sequence[int]) -> SmallGraph | None:
    """Return the first graph that has the gradient; `kind_of` says what kind of node each piece is."""

    def graph(glued: Glued) -> SmallGraph:
        return SmallGraph(kinds.x[[kind_of[piece] for piece in glued.pieces]], glued.edges)

    found = first_right(gluing.graphs(), lambda glued: is_right(sought, graph(glued)), sought.limits.checks)
    return None if found is None else graph(found)


def is_right(sought: Sought, graph: SmallGraph) -> bool:
    """Whether a graph has the gradient that was seen, with the labels that this gradient says."""
    model, mix = sought.model, mixing(graph.adjacency())
    last = OUTPUT.format(model.maps - 1, "")
    if model.pooled:
        towards = sought.gradient[f"{last}bias"].unsqueeze(0)
    else:  # the last map's gradient is H^T times that of the scores
        towards = torch.linalg.pinv(model.hidden(sought.params, mix, graph.x).t()) @ sought.gradient[f"{last}weight"]
    loss = sought.loss_of(model.scores(sought.params, mix, graph.x), towards)
    found = model.gradient(sought.params, mix, graph.x, loss)
    wrong = sum(float((found[name] - each).square().sum()) for name, each in sought.gradient.items())
    return wrong <= sought.fits**2 * sum(float(each.square().sum()) for each in sought.gradient.values())


# ---- losses, with labels that gradients tell

NOTHING = 1e-3  # a gradient of a score that is smaller than this share of the largest is of a label that is not known


def of_classes(scores: Tensor, towards: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the mean cross-entropy: softmax(scores) - label is negative at the label alone."""
    size = towards.abs().amax(dim=1)
    learned = size > NOTHING * size.max().clamp_min(1e-300)
    labels = towards.argmin(dim=1)[learned]
    return lambda found: F.cross_entropy(found[learned], labels)


def of_answers(scores: Tensor, towards: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the mean binary cross-entropy: sigmoid(scores) - answer is negative for a yes."""
    learned = towards.abs() > NOTHING * towards.abs().max().clamp_min(1e-300)
    answers = (towards < 0)[learned].double()
    return lambda found: F.binary_cross_entropy_with_logits(found[learned], answers)

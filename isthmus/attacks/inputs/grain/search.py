"""The search for the graph whose gradient was seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Tensor

from isthmus.attacks.inputs.dense import DenseGCN, bias, mixing, weight
from isthmus.attacks.inputs.grain.blocks import (
    Kinds,
    Limits,
    Span,
    blocks,
    hidden_rows,
    in_span,
    pairs_in_span,
    present,
    second_rows,
    stocks,
    wider,
)
from isthmus.attacks.inputs.grain.gluing import Budget, Glued, Gluing, Piece, all_right
from isthmus.attacks.inputs.grain.small_graph import SmallGraph

OUTPUT = "decoder.layers.{}.{}"
# Where nothing is found, rows that are so much farther from a span are let in as well: a direction may be missing.
WIDER = 4.0

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
        likelihood:       how likely a graph is beforehand: several may have one gradient
    """

    model: DenseGCN
    params: Mapping[str, Tensor]
    gradient: Mapping[str, Tensor]
    loss_of: LossOf
    rank: float
    tolerance: float
    fits: float
    limits: Limits
    likelihood: Callable[[SmallGraph], float] = lambda graph: 0.0


def rebuilt(sought: Sought, kinds: Kinds) -> SmallGraph | None:
    """Return the graph that has the gradient, or None if none was found within the limits."""
    if Span.of(sought.gradient[weight(1)], sought.rank).rank > sought.limits.nodes:
        return None  # of so many nodes, or full of noise
    far = replace(sought, tolerance=WIDER * sought.tolerance)
    for each, choose in ((sought, in_span), (far, in_span), (sought, pairs_in_span)):
        left = nodes_of(each, kinds, choose)
        found = _made_of(each, left) if 0 < len(left) <= sought.limits.kinds else None
        if found is not None:
            return found
    return None


def nodes_of(sought: Sought, kinds: Kinds, choose: Callable[[Kinds, Span, float], Kinds] = in_span) -> Kinds:
    """Return the kinds of nodes that lie in the span of the first layer's gradient."""
    first = sought.gradient[weight(0)]
    left = present(kinds, first, sought.rank, sought.limits.present)
    return choose(left, Span.of(first, sought.rank), sought.tolerance) if len(left) else left


def _made_of(sought: Sought, kinds: Kinds) -> SmallGraph | None:
    """Return the graph whose nodes are of some kinds."""
    limits, params = sought.limits, sought.params
    second = Span.of(sought.gradient[weight(1)], sought.rank)
    rest = params[weight(0)], params[bias(0)], second, sought.tolerance, limits
    if sought.model.pooled:
        pieces = blocks(kinds, *rest)
        return _of_pooled(sought, kinds, pieces) if 0 < len(pieces) <= limits.wide else None
    # First with each kind once, as a text's words are nobody else's.
    for once in (True, False):
        pieces = blocks(kinds, *rest, once=once)
        found = _of_nodes(sought, kinds, pieces, once) if 0 < len(pieces) <= limits.wide else None
        if found is not None:
            return found
    return None


def _of_pooled(sought: Sought, kinds: Kinds, pieces: Sequence[Piece]) -> SmallGraph | None:
    """Return the graph whose nodes' rows, with their neighbours' neighbours, add up to what the decoder read."""
    limits = sought.limits
    wide = wider(pieces, limits.wide)
    if not wide:
        return None
    first = hidden_rows(kinds, pieces, sought.params[weight(0)], sought.params[bias(0)])
    rows = second_rows(first, pieces, wide, sought.params[weight(1)], sought.params[bias(1)])
    budget = Budget(limits.steps)
    for stock in islice(
        stocks(rows, what_was_pooled(sought), limits.nodes, sought.model.pooled == "mean"), limits.sizes
    ):
        gluing = Gluing(wide, budget, limits.nodes, stock=stock)
        found = _likeliest(sought, gluing, kinds, [pieces[piece.label].label for piece in wide])
        if found is not None:
            return found
    return None


def what_was_pooled(sought: Sought) -> Tensor:
    """Return what the decoder's first map read of a graph, (width,): its gradient is that times the bias'."""
    by_weight, by_bias = (sought.gradient[OUTPUT.format(0, name)] for name in ("weight", "bias"))
    return by_weight @ by_bias / by_bias.square().sum().clamp_min(1e-300)


def _of_nodes(sought: Sought, kinds: Kinds, pieces: Sequence[Piece], once: bool) -> SmallGraph | None:
    """Return the graph of nodes with scores."""
    gluing = Gluing(pieces, Budget(sought.limits.steps), sought.limits.nodes, once=once)
    return _likeliest(sought, gluing, kinds, [piece.label for piece in pieces])


def _likeliest(sought: Sought, gluing: Gluing, kinds: Kinds, kind_of: Sequence[int]) -> SmallGraph | None:
    """Return the graph that is likeliest of those that have the gradient; `kind_of` says of what kind each piece is."""

    def graph(glued: Glued) -> SmallGraph:
        return SmallGraph(kinds.x[[kind_of[piece] for piece in glued.pieces]], glued.edges)

    found = all_right(gluing.graphs(), lambda glued: is_right(sought, graph(glued)), sought.limits.checks)
    return max(map(graph, found), key=sought.likelihood, default=None)


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

"""Anonymous walk embeddings: what a graph looks like to random walkers who forget where they are.

Ivanov and Burnaev, Anonymous Walk Embeddings (ICML 2018). FGSSL (Huang et al., 2023, section 1) compares the graphs of
clients by the Jensen-Shannon distance of these embeddings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
from torch import Tensor

from isthmus.data.graph import EdgesByNode, Numbers, spans

Shares = npt.NDArray[np.float64]

MAX_LENGTH = 8  # 4,140 patterns
EXACT_WALKS = 200_000  # a graph with no more walks than this is not sampled


@dataclass(frozen=True, eq=False)
class WalkEmbedding:
    """The share of random walks that have each pattern.

    A walk of `length` steps, (v_0, ..., v_l), has the pattern (f(v_0), ..., f(v_l)): f(v) is 0 for the walk's first
    node, 1 for the next one that is new, and so on. Walks start at each node alike and go to each neighbour alike:

        p(a) = 1/N * sum over nodes u, walks w from u with pattern a, of the product over steps of 1/degree(v_i)

    A node without neighbours stays where it is, which is a pattern of its own: (0, 0, ..., 0). Edges have no weights.

    Fields:
        shares:    (patterns,), adding up to 1; in the order of `patterns(length)`
        length:    steps of a walk
        num_walks: walks that were drawn, or all there are
        exact:     whether all walks were looked at, each with its probability
    """

    shares: Shares
    length: int
    num_walks: int
    exact: bool


def embed(
    edge_index: Tensor,
    num_nodes: int,
    length: int,
    rng: np.random.Generator,
    num_walks: int | None = None,
    exact_walks: int = EXACT_WALKS,
) -> dict[int, WalkEmbedding]:
    """Return the embeddings for walks of 1, 2, ... to `length` steps, all from the same walks.

    Edges are stored both ways, sorted by source, as `statistics.simple_edges` returns them. A graph with at most
    `exact_walks` walks gets exact shares; of another, `num_walks` are drawn (`walks_needed` unless given).
    """
    if not 1 <= length <= MAX_LENGTH:
        raise ValueError(f"length is {length!r}; a walk has 1 to {MAX_LENGTH} steps")
    if num_nodes == 0:
        return {steps: WalkEmbedding(np.zeros(len(patterns(steps))), steps, 0, True) for steps in range(1, length + 1)}
    edges = EdgesByNode.of(edge_index, num_nodes)
    start, target = edges.start, edges.target
    exact = count_walks(start, target, length) <= exact_walks
    if exact:
        walks, weights = all_walks(start, target, length)
    else:
        walks = draw_walks(start, target, length, num_walks or walks_needed(length), rng)
        weights = np.full(len(walks), 1.0 / len(walks))
    pattern = anonymous(walks)
    found = {}
    for steps in range(1, length + 1):
        shares = np.bincount(_numbers(pattern[:, : steps + 1]), weights, minlength=len(patterns(steps)))
        found[steps] = WalkEmbedding(shares / shares.sum(), steps, len(walks), exact)
    return found


@cache
def patterns(length: int) -> tuple[tuple[int, ...], ...]:
    """Return all patterns of walks of `length` steps, in the order of their digits: Bell(length), and (0, ..., 0).

    >>> patterns(2)
    ((0, 0, 0), (0, 1, 0), (0, 1, 2))
    >>> [len(patterns(length)) - 1 for length in (3, 4, 5, 6, 7)]
    [5, 15, 52, 203, 877]
    """
    grown: list[tuple[int, ...]] = [(0,)]
    for _ in range(length):
        grown = [(*walk, to) for walk in grown for to in range(max(walk) + 2) if to != walk[-1]]
    return tuple(sorted([(0,) * (length + 1), *grown]))


def walks_needed(length: int, error: float = 0.03, doubt: float = 0.01) -> int:
    """Return how many walks to draw: ceil(2 / error^2 * (ln(2^patterns - 2) - ln doubt)).

    So many that the absolute errors of all shares add up to more than `error` with a probability of at most `doubt`
    (section 3.1 of the paper, after Shervashidze et al., 2009).
    """
    count = len(patterns(length))
    return math.ceil(2.0 / error**2 * (math.log(2**count - 2) - math.log(doubt)))


def count_walks(start: Numbers, target: Numbers, length: int) -> float:
    """Return how many different walks of `length` steps there are, from all nodes."""
    num_nodes = len(start) - 1
    source = np.repeat(np.arange(num_nodes), np.diff(start))
    alone = np.diff(start) == 0
    walks = np.ones(num_nodes)
    for _ in range(length):
        walks = np.where(alone, 1.0, np.bincount(source, walks[target], minlength=num_nodes))
    return float(walks.sum())


def all_walks(start: Numbers, target: Numbers, length: int) -> tuple[Numbers, Shares]:
    """Return every walk, (walks, length + 1), and its probability, (walks,)."""
    num_nodes = len(start) - 1
    walks = np.arange(num_nodes)[:, None]
    chance = np.full(num_nodes, 1.0 / num_nodes)
    for _ in range(length):
        here = walks[:, -1]
        degree = start[here + 1] - start[here]
        ways = np.maximum(degree, 1)
        before = np.repeat(np.arange(len(walks)), ways)
        to = here[before]
        moving = (degree > 0)[before]
        to[moving] = target[spans(start[here], degree)]
        walks = np.concatenate([walks[before], to[:, None]], axis=1)
        chance = (chance / ways)[before]
    return walks, chance


def draw_walks(start: Numbers, target: Numbers, length: int, num_walks: int, rng: np.random.Generator) -> Numbers:
    """Return random walks, (num_walks, length + 1)."""
    walks = np.empty((length + 1, num_walks), dtype=np.int64)
    walks[0] = rng.integers(len(start) - 1, size=num_walks)
    for step in range(length):
        here = walks[step]
        degree = start[here + 1] - start[here]
        edge = start[here] + (rng.random(num_walks) * degree).astype(np.int64)
        moving = degree > 0
        walks[step + 1] = here
        walks[step + 1, moving] = target[edge[moving]]
    return walks.T


def anonymous(walks: Numbers) -> npt.NDArray[np.int8]:
    """Return the patterns of walks, of the same shape: each node as the number of nodes that were new before it."""
    columns = np.ascontiguousarray(walks.T)
    pattern = np.zeros(columns.shape, dtype=np.int8)
    num_seen = np.ones(columns.shape[1], dtype=np.int8)
    for step in range(1, len(columns)):
        pattern[step] = num_seen
        for earlier in range(step):
            np.copyto(pattern[step], pattern[earlier], where=columns[step] == columns[earlier])
        num_seen += pattern[step] == num_seen
    return pattern.T


def _numbers(pattern: npt.NDArray[np.int8]) -> Numbers:
    """Return the place of each pattern in `patterns`."""
    length = pattern.shape[1] - 1
    digits = (length + 1) ** np.arange(length, -1, -1)
    known = np.array(patterns(length)) @ digits  # ascending, as the patterns are
    code = np.zeros(len(pattern), dtype=np.int64)
    for step in range(length + 1):
        code += pattern[:, step] * digits[step]
    return np.searchsorted(known, code)

"""Ranks of the true answer among all candidates, with ties at their mean, and what is made of them: Hits@n and MRR.

Filtered ranks leave other answers that are known to be true out of the list (Bordes et al., 2013). Candidates with the
same score as the true one count half: the rank is the mean over all orders of the tied ones, 1 + greater + tied / 2. So
a model that gives everything one score is in the middle of the list, not at its top. Where a candidate's score is not
finite, there is no rank: it is infinite, and what is made of it is undefined (`metrics.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from isthmus.learn.tasks.known_links import HEAD, TAIL, KnownLinks
from isthmus.models.decoders import LinkPart

# About how many numbers are held at a time while links are ranked.
MAX_NUMBERS = 2_000_000


def _of_ranks(measure: Callable[[Tensor], Tensor]) -> Callable[[Tensor], float]:
    return lambda ranks: float(measure(ranks).mean()) if bool(ranks.isfinite().all()) else math.nan


# From the ranks of some answers, (answers,), to one number; NaN where there is no answer, or one without a rank.
RANKINGS: dict[str, Callable[[Tensor], float]] = {
    "hits@1": _of_ranks(lambda ranks: (ranks <= 1).double()),
    "hits@5": _of_ranks(lambda ranks: (ranks <= 5).double()),
    "hits@10": _of_ranks(lambda ranks: (ranks <= 10).double()),
    "mrr": _of_ranks(torch.reciprocal),
}


def mean_ranks(scores: Tensor, truth: Tensor, left_out: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """Return the rank of the column `truth` in each row of scores, (rows, candidates), as float64 from 1 on.

    `left_out` are entries, rows and columns, each once, that do not count; the true one may be among them. A row with a
    score that is not finite has no rank: infinity.
    """
    rows = torch.arange(len(scores), device=scores.device)
    own = scores[rows, truth].unsqueeze(1)  # (rows, 1)
    greater = (scores > own).sum(dim=1)
    equal = (scores == own).sum(dim=1)
    row, column = (rows, truth) if left_out is None else left_out
    found = scores[row, column]
    greater.index_add_(0, row, (found > own[row, 0]).long(), alpha=-1)
    equal.index_add_(0, row, (found == own[row, 0]).long(), alpha=-1)
    ranks = 1.0 + greater.cpu().double() + equal.cpu().double() / 2  # not every device has doubles
    return ranks.masked_fill(~scores.isfinite().all(dim=1).cpu(), math.inf)


def ranks_of_ends(
    part: LinkPart, h: Tensor, known: KnownLinks, links: Tensor, relation: Tensor, filtered: bool
) -> Tensor:
    """Return the rank of each link's head, given the tail, and of its tail, given the head, (2, links).

    The candidates are all nodes of the same side. Links are taken in blocks, so that memory stays bounded.
    """
    ranks = torch.empty(2, links.shape[1], dtype=torch.float64)
    for end in (HEAD, TAIL):
        side = known.candidates.side[links[end]]
        for number in range(known.candidates.num_sides):
            mine = (side == number).nonzero().flatten()
            members = known.candidates.members(number)
            size = max(MAX_NUMBERS // max(len(members) * part.numbers_per_pair, 1), 1)
            others = h[members]
            for block in torch.split(mine, size) if len(mine) else ():
                asked, kind = links[:, block], relation[block]
                scores = part.against(h[asked[1 - end]], others, kind, given_is_head=end == TAIL)
                truth = known.candidates.place[asked[end]]
                ranks[end, block.cpu()] = mean_ranks(scores, truth, _left_out(known, asked, kind, end, truth, filtered))
    return ranks


def _left_out(
    known: KnownLinks, links: Tensor, relation: Tensor, end: int, truth: Tensor, filtered: bool
) -> tuple[Tensor, Tensor] | None:
    """Return the known answers, the true one among them."""
    if not filtered:
        return None
    row, place = known.partners[end].entries(known.rows(links, relation, end))
    other = place != truth[row]  # a link that is asked for without being known is left out all the same
    rows = torch.arange(len(truth), device=truth.device)
    return torch.cat([row[other], rows]), torch.cat([place[other], truth])

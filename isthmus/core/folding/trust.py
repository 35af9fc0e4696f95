"""Folds that count a reply by how much it is trusted: FoolsGold, FLTrust. Fung et al., 2020; Cao et al., 2021."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from isthmus.core.errors import CourseFailed, refuse
from isthmus.core.folding.changes import changes_of, mean_by, weights_of, with_change
from isthmus.core.folds import Answer, Gathered
from isthmus.core.guards.guard import SERVER
from isthmus.core.outside import some
from isthmus.core.record import Record, State, leaves


@dataclass(frozen=True)
class FoolsGold(Gathered):
    """Clients that all change the model alike count less: they may be one, with many names (Fung et al., 2020).

    With h_k the sum of client k's changes over the rounds, c_kj the cosine of h_k and h_j, m_k = max_j c_kj:

        c_kj <- c_kj m_k/m_j where m_j > m_k (honest clients are pardoned),   a_k = 1 - max_j c_kj, at least 0
        a_k <- confidence (ln(a_k / (1 - a_k)) + 1/2) after division by the largest, cut to [0, 1]

    The result is the mean by n_k a_k. Sums over rounds are kept by the guard `robust_fold`; without it, as the fold of
    an algorithm, each round is judged by itself. Where no two clients' changes point the same way, this is the weighted
    mean; where all are alike, there is nobody to prefer, and it is too.

    Fields:
        confidence: how steeply trust falls
        weighted:   n_k is the reply's own weight; if not, all count the same
    """

    confidence: float = 1.0
    weighted: bool = True

    def __post_init__(self) -> None:
        refuse(not 0.0 < self.confidence < math.inf, self, "confidence", "it must be positive")

    @property
    def least_replies(self) -> int:
        """Two: one has nobody to be like."""
        return 2

    def combine(self, given: list[Answer]) -> Record:
        """Return the mean by the trust of this round alone."""
        return self.combine_with(given, {}, "")[0]

    def combine_with(self, given: list[Answer], memory: State, place: str) -> tuple[Record, State]:
        """Return the mean by trust, and the sums of all clients' changes."""
        changes = changes_of(given)
        sums, places = dict(memory.get("sums", {})), dict(memory.get("places", {}))
        history = []
        for answer, change in zip(given, changes, strict=True):
            name, found = answer.client, change
            if name in sums and sums[name].shape == change.shape:
                found = sums[name] if places[name] == place else sums[name] + change
            if name:
                sums[name], places[name] = found, place
            history.append(found)
        trust = self.trust(torch.stack(history)).tolist()
        weights = [a * n for a, n in zip(trust, weights_of(given, self.weighted), strict=True)]
        mean = mean_by(given[0].reply, [leaves(answer.reply) for answer in given], weights)
        return mean, {"sums": sums, "places": places}

    def trust(self, history: Tensor) -> Tensor:
        """Return a_k for each row of sums of changes, (clients,) in [0, 1]."""
        alike = cosines(history, history).fill_diagonal_(0.0)
        most = alike.max(dim=1).values  # m_k, at least 0
        pardon = torch.where(most > most.unsqueeze(1), most.unsqueeze(1) / most.clamp_min(1e-12), 1.0)
        left = (1.0 - (alike * pardon).max(dim=1).values).clamp(0.0, 1.0)
        if not float(left.max()) > 0.0:
            return torch.ones_like(left)
        left = left / left.max()
        return (self.confidence * (torch.logit(left) + 0.5)).clamp(0.0, 1.0)


@dataclass(frozen=True)
class FLTrust(Gathered):
    """Changes count by how far they point where a trusted client's points (Cao et al., 2021).

    With g_0 the change of the `root`, the client whose graph the server itself has, and g_k those of the others:

        sum_k t_k |g_0|/|g_k| g_k / sum_k t_k,   t_k = max(0, cos(g_k, g_0))

    The method's own local training gives g_0, whatever the method is. With `root` "server" it is done by the server, on
    a graph of its own (the course's `server_share`), behind the guard `robust_fold`. Else the root is a client of the
    course, such as a silo that is run by whoever runs the server. Where nobody points where the root does, nothing is
    changed.

    Fields:
        root:   "server", or the id of the trusted client, which must answer every time then
        counts: whether the root's own change is one of those averaged, with t = 1
    """

    root: str = "client-0"
    counts: bool = False

    @property
    def least_replies(self) -> int:
        """The root's and one more."""
        return 1 if self.asks_server else 2

    @property
    def asks_server(self) -> bool:
        """Whether the root is the server itself."""
        return self.root == SERVER

    def combine(self, given: list[Answer]) -> Record:
        """Return what was sent, changed by the trusted mean of the changes."""
        at = next((k for k, answer in enumerate(given) if answer.client == self.root), None)
        if at is None:
            if self.asks_server:
                raise CourseFailed(
                    "FLTrust has no reply of positive weight of the server's own graph: it needs training examples, "
                    "and the guard robust_fold, which asks for it"
                )
            heard = some([answer.client for answer in given]) if any(answer.client for answer in given) else "no names"
            raise CourseFailed(
                f"FLTrust trusts the client {self.root!r}, of which there is no reply of positive weight among those "
                f"of {heard}: name one in fold.root that answers every time and has training examples"
            )
        changes = changes_of(given)
        root = changes[at]
        trust = cosines(changes, root.unsqueeze(0)).squeeze(1).clamp_min(0.0)
        trust[at] = 1.0 if self.counts else 0.0
        size = root.norm()
        if not float(trust.sum()) > 0.0 or not float(size) > 0.0:
            return mean_by(given[at].reply, [with_change(given[at], torch.zeros_like(root))], [1.0])
        factors = (size / changes.norm(dim=1).clamp_min(torch.finfo(torch.float64).tiny)).tolist()
        rows = [
            leaves(answer.reply) if factor == 1.0 else with_change(answer, factor * change)
            for answer, change, factor in zip(given, changes, factors, strict=True)
        ]
        return mean_by(given[at].reply, rows, trust.tolist())


def cosines(rows: Tensor, others: Tensor) -> Tensor:
    """Return the cosine of each row with each of the others, (rows, others); 0 with a row of zeros."""
    lengths = rows.norm(dim=1, keepdim=True), others.norm(dim=1, keepdim=True)
    unit, other = (torch.where(n > 0.0, x / n, 0.0) for x, n in zip((rows, others), lengths, strict=True))
    return unit @ other.T

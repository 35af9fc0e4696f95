"""Inside one client: how it trains between two messages, how much it counts, and how it is evaluated."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from isthmus.core.client import Client
from isthmus.core.protocol import Holdings
from isthmus.core.record import CPU, Params
from isthmus.data.conventions import SPLITS
from isthmus.learn.batching import Batching
from isthmus.learn.heavy_work import Combine, Evaluate, Fit, Fitted
from isthmus.learn.optimizers import Optimizer, OptimizerState
from isthmus.learn.steps import Envelope, Loss, Penalty, load_params
from isthmus.learn.tasks.stacked_batches import Evaluated
from isthmus.learn.tasks.task import Predictions, Task


class ForeignEdges(NamedTuple):
    """Edges from a client's nodes to nodes that others host.

    Fields:
        node:   (edges,), int64; a node of the client
        key:    (edges,), int64; the key of the other end, as the `node_keys` of its host
        weight: (edges,), float32; None where all are one
    """

    node: Tensor
    key: Tensor
    weight: Tensor | None


class GraphClient(Client):
    """One silo's data and the means to learn from it.

    The module is scratch: parameters are loaded before each use, and a use ends where the client is asked for heavy
    work (`fit`, `evaluate`, `combined`), which others may share.

    Attributes:
        node_keys: the name under which other clients know the same node, (nodes,), int64, all different; None where
                   this client cannot say. In simulation these are the data's `node_ids`. Between sites, where those
                   are row numbers that mean nothing to others, the silo puts its own here: keys made of ids and a
                   secret (`isthmus.sites.silo.identities`), or None
        foreign:   edges to nodes of others by their keys, where a silo's folder has a table of them; else None
        own:       what its personal parameters begin with: those that no message holds (`Course.shared`). Later ones
                   are in `state["personal"]`
    """

    def __init__(
        self,
        id: str,
        data: Any,
        task: Task,
        model: nn.Module,
        batching: Batching,
        own: Params | None = None,
        device: torch.device = CPU,
    ) -> None:
        super().__init__(id)
        self.device = device
        self.data = data if device == CPU else data.to(device)
        self.task = task
        self.model = model if device == CPU else model.to(device)
        self.batching = batching
        self.own: Params = {name: tensor.to(device) for name, tensor in (own or {}).items()}
        self.node_keys: Tensor | None = getattr(self.data, "node_ids", None)  # a set of graphs has none
        self.foreign: ForeignEdges | None = None

    @cached_property
    def prepared(self) -> Any:
        """The data as the task works on it; rebuilt from the data after a restart."""
        return self.task.prepare(self.data)

    @cached_property
    def num_examples(self) -> int:
        """Number of training examples."""
        return self.task.count(self.data, "train")

    @property
    def num_nodes(self) -> int:
        """Number of nodes in the client's graph, labelled or not."""
        return int(self.data.num_nodes)

    @cached_property
    def holdings(self) -> Holdings:
        """How much data the client has, which bounds what it may count for."""
        return Holdings(self.num_nodes, {split: self.task.count(self.data, split) for split in SPLITS})

    def complete(self, params: Params) -> Params:
        """Return parameters together with the client's personal ones, where they are not among them."""
        if not self.own:
            return params
        personal: Params = self.state.get("personal", self.own)
        return {**personal, **params}

    def keep_personal(self, trained: Params, given: Params) -> Params:
        """Keep what was trained beyond the given parameters as the client's personal ones; return the others."""
        if trained.keys() == given.keys():
            return trained
        self.state = {**self.state, "personal": {name: trained[name] for name in trained if name not in given}}
        return {name: trained[name] for name in given}

    def fit(
        self,
        params: Params,
        *,
        steps: int,
        optimizer: Optimizer,
        step_unit: str = "batch",
        penalty: Penalty | None = None,
        optimizer_state: OptimizerState | None = None,
        loss: Loss | None = None,
        prepared: Any = None,
        drift: Params | None = None,
        sum_gradients: bool = False,
        purpose: str = "fit",
        envelope: Envelope | None = None,
    ) -> Fitted:
        """Train from `params` on the client's own graph; the learning rate is the schedule's for this round.

        A step is one batch, or one pass over the training examples; on a full batch they are the same. `loss` takes
        the place of the task's, `penalty` is added to either. `prepared` takes the place of the client's own data:
        the same with other edges or labels. Parameters that are missing in `params` are the client's personal ones:
        they are trained with the others and stay in its memory.

        `drift` is added to the gradients of these parameters at every step; with `sum_gradients` the gradients without
        it, and without those of a penalty, come back added up. `purpose` names the random stream. With an `envelope`,
        in the place of a penalty, `params` is the centre, and what comes back are the last theta and the centre.
        """
        other = None if prepared is self.prepared else prepared
        asked = (step_unit, penalty, optimizer_state, loss, other, drift, sum_gradients, purpose, envelope)
        work = Fit(params, steps, optimizer, *asked)
        private = None if self.guards is None else self.guards.private_steps
        if private is not None:
            from isthmus.learn.private_fit import PrivateFit  # seldom needed, and it stands on this file

            return self.do(PrivateFit(work, private))  # type: ignore[no-any-return]
        fitted: Fitted = self.do(work)
        return fitted

    def evaluate(self, params: Params, splits: tuple[str, ...], prepared: Any = None) -> Evaluated:
        """Return metrics and example counts per split of a model on the client's own graph, or what takes its place."""
        found: Evaluated = self.do(Evaluate(params, splits, None if prepared is self.prepared else prepared))
        return found

    def combined(self, *terms: tuple[float, Params], names: Collection[str] | None = None) -> Params:
        """Return the sum of factor times parameters, over the names that all have, or over some of them.

        The same as a line of arithmetic for each; but parameters that this client has in common with others in a
        simulation are not taken apart for it.
        """
        common = tuple(terms[0][1].keys() if names is None else names)
        for _, params in terms:
            keys = params.keys()
            if not all(map(keys.__contains__, common)):
                common = tuple(name for name in common if name in keys)
        found: Params = self.do(Combine(terms, common))
        return found

    def predict(self, params: Params) -> Predictions:
        """Return a model's probabilities for every example of the client."""
        load_params(self.model, self.complete(params))
        return self.task.predict(self.model, self.prepared)

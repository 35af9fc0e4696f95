"""Weights that are drawn to what all have in common, held as how far they are from it: the pull is the decay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from isthmus.core.record import Params
from isthmus.learn.graph_client import Fit, GraphClient
from isthmus.learn.optimizers import SGD, Adam, AdamW, Optimizer, Pull
from isthmus.learn.together.layouts import BeyondRows, CompactRows, FullRows, Layout
from isthmus.learn.together.stacked_clients import FullSteps, GraphCohort, Together
from isthmus.learn.together.stacked_features import feature_weights
from isthmus.models import GCN, MLP, SAGE, ModelSpec
from tests.learn.together.test_alike_rows import with_alike
from tests.learn.together.test_stacked_clients import clients_of, start_of

OPTIMIZERS = {
    "adam": Adam(lr=0.02, eps=1e-3),
    "sgd": SGD(lr=0.2),
    "momentum": SGD(lr=0.2, momentum=0.5),
}


def own_starts(clients: Sequence[GraphClient], anchor: Params) -> list[Params]:
    """Return starts that differ in the rows of features that occur at a client, and elsewhere from the anchor alone."""
    found = []
    for k, client in enumerate(clients):
        mine = start_of(clients, 10 + k)
        occurs = (client.data.x.to_dense() != 0.0).any(dim=0)
        for name in feature_weights(client.model):
            mine[name] = torch.where(occurs.unsqueeze(1), mine[name], 2.0 * anchor[name])
        found.append(mine)
    return found


def cohort_of(network: object, seed: int = 1) -> tuple[GraphCohort, Params, list[Params]]:
    clients = [with_alike(client) for client in clients_of(ModelSpec(network), is_sparse=True)]  # type: ignore[arg-type]
    anchor, cohort = start_of(clients, seed), GraphCohort(clients)
    cohort._features.span_pays = False  # type: ignore[union-attr]
    return cohort, anchor, own_starts(clients, anchor)


def layouts_that_train(
    cohort: GraphCohort, works: Sequence[Fit], monkeypatch: pytest.MonkeyPatch
) -> tuple[list[Layout], list[object]]:
    """Train, and return how the weights of features were held, and what came back."""
    seen: list[Layout] = []
    run = FullSteps.run

    def watched(steps: FullSteps) -> None:
        seen.extend(steps.weights._layouts[name] for name in feature_weights(cohort.model))
        run(steps)

    with monkeypatch.context() as patch:
        patch.setattr(FullSteps, "run", watched)
        found = list(cohort.fit_all(works))
    return seen, found  # type: ignore[return-value]


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("network", [GCN(hidden=6), MLP(hidden=6), SAGE(hidden=6, dropout=0.3)])
def test_training_leaves_everybody_with_the_weights_that_it_would_have_alone(
    network: object, optimizer: Optimizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    cohort, anchor, starts = cohort_of(network)
    pull = Pull(0.4, anchor)
    works = [Fit(start, 3, optimizer, penalty=pull) for start in starts]
    held, together = layouts_that_train(cohort, works, monkeypatch)
    assert {type(each) for each in held} == {BeyondRows}
    for client, work, mine in zip(cohort, works, together, strict=True):
        alone = work.alone(client)
        for name, tensor in alone.params.items():
            torch.testing.assert_close(mine.params[name], tensor, atol=3e-5, rtol=3e-5)  # type: ignore[attr-defined]
        for slot in ("first", "second", "momentum"):
            pairs = zip(mine.optimizer_state.get(slot, ()), alone.optimizer_state.get(slot, ()), strict=True)  # type: ignore[attr-defined]
            for one, other in pairs:
                torch.testing.assert_close(one, other, atol=3e-5, rtol=3e-5)
        assert mine.optimizer_state["step"] == alone.optimizer_state["step"] == 3  # type: ignore[attr-defined]


def test_they_are_held_where_the_optimiser_can_pull_and_all_are_drawn_to_one_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cohort, anchor, starts = cohort_of(GCN(hidden=6))
    adam = OPTIMIZERS["adam"]
    weight = feature_weights(cohort.model)[0]

    def kind(optimizer: Optimizer, pulls: Sequence[Pull], **asked: object) -> type:
        works = [
            Fit(start, 1, optimizer, penalty=pull, **asked)  # type: ignore[arg-type]
            for start, pull in zip(starts, pulls, strict=True)
        ]
        return type(layouts_that_train(cohort, works, monkeypatch)[0][0])

    one = [Pull(0.4, anchor)] * 5
    assert kind(adam, one) is BeyondRows
    assert kind(replace(adam, weight_decay=0.1), one) is CompactRows
    assert kind(AdamW(lr=0.02), one) is kind(AdamW(lr=0.02, weight_decay=0.0), one) is CompactRows
    assert kind(adam, [Pull(0.4, dict(anchor)) for _ in range(5)]) is CompactRows
    assert kind(adam, [Pull(0.4, anchor, {weight: torch.ones_like(anchor[weight])})] * 5) is CompactRows
    others = {name: tensor for name, tensor in anchor.items() if name != weight}
    assert kind(adam, [Pull(0.4, others)] * 5) is CompactRows
    starts[0][weight] = starts[0][weight] + 1.0  # rows that no data touches are not the same for all
    assert kind(adam, one) is FullRows


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_step_with_pulls_is_one_with_gradients_that_they_have_joined(optimizer: Optimizer) -> None:
    draw = torch.Generator().manual_seed(0)
    mine = [torch.randn(size, generator=draw) for size in (40, 3, 40)]
    theirs, pulls = [each.clone() for each in mine], [0.5, 0.0, 0.5]
    state, other = optimizer.start(mine), optimizer.start(theirs)
    for _ in range(4):
        grads = [torch.randn(each.shape, generator=draw) for each in mine]
        joined = [grad + pull * value for grad, pull, value in zip(grads, pulls, theirs, strict=True)]
        optimizer.pulled_step(mine, grads, state, 0.1, pulls)
        optimizer.step(theirs, joined, other, 0.1)
    torch.testing.assert_close(mine, theirs)
    torch.testing.assert_close(state, other)


def test_which_optimisers_take_pulls() -> None:
    assert all(optimizer.takes_pulls for optimizer in OPTIMIZERS.values())
    assert not Adam(weight_decay=0.1).takes_pulls and not AdamW(weight_decay=0.0).takes_pulls

    class Mine(Adam):
        pass

    assert not Mine().takes_pulls


def test_a_pull_to_the_beginning_is_the_decay_of_what_was_added() -> None:
    cohort, anchor, _ = cohort_of(GCN(hidden=6))
    seen: list[list[float]] = []

    class Watched(FullSteps):
        def run(self) -> None:
            seen.append(self.weights.pulls)

    asked = Together(steps=1, optimizer=OPTIMIZERS["adam"], proximal=0.3, pulled=anchor)
    run, FullSteps.run = FullSteps.run, Watched.run  # type: ignore[method-assign]
    try:
        with pytest.raises(RuntimeError):  # nothing was trained
            cohort.train(anchor, asked)
    finally:
        FullSteps.run = run  # type: ignore[method-assign]
    names = [name for name in anchor if name not in cohort._buffers]
    assert seen == [[0.3 * (name in feature_weights(cohort.model)) for name in names]]


def test_sums_with_what_all_have_in_common_have_the_same_bits_part_by_part() -> None:
    cohort, anchor, starts = cohort_of(GCN(hidden=6))
    works = [Fit(start, 2, OPTIMIZERS["adam"], penalty=Pull(0.4, anchor)) for start in starts]
    stack = cohort.fit_all(works)[0].params.stack  # type: ignore[attr-defined]
    (name,) = feature_weights(cohort.model)
    before: list[Tensor] = [stack.each[name].member(k) for k in range(5)]
    stack.condense()
    assert all(torch.equal(stack.each[name].member(k), before[k]) for k in range(5))

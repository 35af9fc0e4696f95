"""Steps that hide examples: by hand, against a slow loop of its own, and what an example can change at most."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from isthmus.core.errors import BadInput
from isthmus.core.guards.hiding import STEPS_TAKEN, PrivateSteps
from isthmus.core.protocol import Position
from isthmus.core.random import Secret, seeded
from isthmus.learn.batching import FullBatch
from isthmus.learn.graph_client import Fit, GraphClient
from isthmus.learn.optimizers import SGD, Adam, Envelope, Pull, read_params
from isthmus.learn.private_fit import Examples, PrivateFit
from isthmus.learn.tasks import GraphBinary, GraphClassification
from isthmus.models import GAP, GCN, GIN, MLP, MLPDecoder, ModelSpec, SumReadout
from isthmus.models.gnn.gap import OwnRows, SummedRows
from isthmus.testing import toy_client, toy_graph
from tests.learn.tasks.graph_toys import NODES, toy_set

PLAIN = PrivateSteps(clip=1e6, noise=0.0, fraction=1.0, most=100)
ON_GRAPHS = ModelSpec(GCN(hidden=5, dropout=0.0), decoder=MLPDecoder(hidden=4, dropout=0.0), readout=SumReadout())
ON_NODES = ModelSpec(MLP(hidden=5, dropout=0.0))


def graph_client(target: str = "class", model: ModelSpec = ON_GRAPHS) -> GraphClient:
    task: Any = GraphClassification() if target == "class" else GraphBinary()
    data: Any = toy_set(target, sizes=NODES * 2)
    with seeded(0):
        module = model.build(task.input_dim(data), task.output_dim(data))
    client = GraphClient("a", data, task, module, FullBatch())
    client.secret = Secret.of_simulation(0, "a")
    return client


def node_client(model: ModelSpec = ON_NODES) -> GraphClient:
    return toy_client(model=model)


def asked(client: GraphClient, **changes: Any) -> Fit:
    return replace(Fit(read_params(client.model), 3, SGD(lr=0.1)), **changes)


def trained(client: GraphClient, private: PrivateSteps, /, **changes: Any) -> dict[str, Tensor]:
    return PrivateFit(asked(client, **changes), private).alone(client).params


def close(mine: dict[str, Tensor], theirs: dict[str, Tensor], tolerance: float = 1e-5) -> None:
    assert mine.keys() == theirs.keys()
    for name, slot in mine.items():
        assert torch.allclose(slot, theirs[name], atol=tolerance, rtol=tolerance), name


CLIENTS = [graph_client, lambda: graph_client("class", replace(ON_GRAPHS, gnn=GIN(hidden=5, dropout=0.0))), node_client]


@pytest.mark.parametrize("make", CLIENTS, ids=["graphs", "gin", "nodes"])
@pytest.mark.parametrize("optimizer", [SGD(lr=0.1, weight_decay=0.01), Adam(lr=0.01)], ids=["sgd", "adam"])
def test_without_noise_and_a_clip_that_nobody_reaches_it_is_a_full_batch(make: Any, optimizer: Any) -> None:
    pull = Pull(0.3, read_params(make().model))
    private = trained(make(), PLAIN, optimizer=optimizer, penalty=pull)
    client = make()
    close(private, asked(client, optimizer=optimizer, penalty=pull).alone(client).params)


def by_hand(client: GraphClient, clip: float, lr: float) -> tuple[dict[str, Tensor], list[float]]:
    """Return a model after one step on all graphs, each of whose gradients is clipped; and the lengths before."""
    before = read_params(client.model)
    named = dict(client.model.named_parameters())
    total, lengths = {name: torch.zeros_like(slot) for name, slot in named.items()}, []
    data: Any = client.data
    train = data.masks["train"].nonzero().flatten().tolist()
    for place in train:
        one = client.task.prepare(
            replace(data.divide([torch.tensor([place])])[0], masks={"train": torch.tensor([True])})
        )
        (batch,) = [next(client.task.batches(one, FullBatch(), torch.Generator()))]
        client.model.zero_grad()
        client.task.loss(client.model, batch, None).backward()  # type: ignore[arg-type]
        lengths.append(math.sqrt(sum(float(slot.grad.double().square().sum()) for slot in named.values())))
        for name, slot in named.items():
            total[name] += slot.grad * min(1.0, clip / lengths[-1])  # type: ignore[operator]
    return {name: before[name] - lr * total[name] / len(train) for name in before}, lengths


def test_one_step_is_the_mean_of_gradients_that_were_clipped_one_by_one() -> None:
    _, lengths = by_hand(graph_client(), 1.0, 0.1)
    clip = sorted(lengths)[len(lengths) // 2]  # some are longer, some are not
    theirs, _ = by_hand(graph_client(), clip, 0.1)
    close(trained(graph_client(), replace(PLAIN, clip=clip), steps=1), theirs)


@pytest.mark.parametrize(
    "make", [graph_client, lambda: graph_client("binary"), node_client], ids=["graphs", "binary", "nodes"]
)
@pytest.mark.parametrize("clip", [1e-3, 0.1, 1.0])
def test_leaving_out_any_example_changes_the_sum_by_no_more_than_the_clip(make: Any, clip: float) -> None:
    client = make()
    examples = Examples.of(client.model, client.prepared)
    live = list(client.model.parameters())
    loss, draw = client.task.loss, torch.Generator()
    whole = examples.summed(range(len(examples)), live, loss, draw, clip)
    reached = 0.0
    for place in range(len(examples)):
        others = [other for other in range(len(examples)) if other != place]
        without = examples.summed(others, live, loss, draw, clip)
        apart = sum(float((a.double() - b).square().sum()) for a, b in zip(whole, without, strict=True))
        reached = max(reached, math.sqrt(apart))
    assert reached <= clip * (1 + 1e-5)  # sums of floats are rounded
    assert clip > 1e-3 or reached > 0.999 * clip


@pytest.mark.parametrize("kind", ["mlp", "mlp on sparse features", "own rows", "sums"])
@pytest.mark.parametrize("clip", [1e-3, 0.3, 1e6])
def test_rows_that_are_taken_together_are_those_that_are_taken_one_by_one(kind: str, clip: float) -> None:
    gap = kind in ("own rows", "sums")
    client = toy_client(
        toy_graph(sparse="sparse" in kind), model=ModelSpec(GAP(hidden=5, dim=4, dropout=0.0)) if gap else ON_NODES
    )
    prepared = client.prepared
    if gap:
        graph, network = prepared.graph, client.model.gnn
        made = OwnRows(graph.x, graph.edge_index[:, :0])
        if kind == "sums":
            made = SummedRows(network.summed(graph, None).detach(), graph.edge_index[:, :0])  # type: ignore[operator,union-attr,assignment]
        prepared = replace(prepared, graph=made)
    examples = Examples.of(client.model, prepared)
    live, loss = list(client.model.parameters()), client.task.loss
    drawn = range(0, len(examples), 2)
    together = examples.summed(drawn, live, loss, torch.Generator(), clip)
    each = list(examples.clipped(drawn, live, loss, torch.Generator(), clip))
    for mine, theirs in zip(together, zip(*each, strict=True), strict=True):
        assert torch.allclose(mine, torch.stack(theirs).sum(0), atol=1e-5 * max(1.0, min(clip, 1.0)), rtol=1e-4)
    by_loop = examples.summed(drawn, live, lambda *given: loss(*given), torch.Generator(), clip)  # another loss
    assert all(
        torch.equal(a, torch.stack(b).sum(0)) or torch.allclose(a, torch.stack(b).sum(0))
        for a, b in zip(by_loop, zip(*each, strict=True), strict=True)
    )
    # and one row alone is never longer than the clip
    alone = examples.summed([0], live, loss, torch.Generator(), clip)
    assert math.sqrt(sum(float(g.double().square().sum()) for g in alone)) <= clip


def test_a_row_without_a_finite_gradient_counts_for_nothing_among_others() -> None:
    client = node_client()
    examples = Examples.of(client.model, client.prepared)
    live, loss = list(client.model.parameters()), client.task.loss
    before = examples.summed([1, 2], live, loss, torch.Generator(), 1.0)
    client.data.x[int(client.prepared.index["train"][0])] = torch.inf
    after = examples.summed([0, 1, 2], live, loss, torch.Generator(), 1.0)
    assert all(torch.allclose(a, b) for a, b in zip(before, after, strict=True))


def test_an_example_without_a_finite_gradient_counts_for_nothing() -> None:
    client = node_client()
    examples = Examples.of(client.model, client.prepared)
    live = list(client.model.parameters())

    def loss(model: Any, batch: Any, generator: Any) -> Tensor:
        found: Tensor = client.task.loss(model, batch, generator)
        return found * torch.inf

    assert not list(examples.clipped(range(len(examples)), live, loss, torch.Generator(), 1.0))


def test_the_noise_on_a_step_is_what_is_promised() -> None:
    client = node_client(ModelSpec(MLP(hidden=4000, dropout=0.0)))
    steps = PrivateSteps(clip=0.5, noise=3.0, fraction=0.5, most=1)
    before = read_params(client.model)
    after = trained(client, steps, steps=1, optimizer=SGD(lr=1.0))
    moved = torch.cat([(after[name] - before[name]).flatten() for name in before])
    assert float(moved.std()) == pytest.approx(3.0 * 0.5 / (0.5 * client.num_examples), rel=0.03)


def test_each_example_is_drawn_by_itself_with_the_probability_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    who: list[int] = []

    def spy(self: Examples, drawn: Any, live: Any, *rest: Any) -> Any:
        counts.append(len(drawn))
        who.extend(drawn)
        return [torch.zeros_like(slot) for slot in live]

    monkeypatch.setattr(Examples, "summed", spy)
    client = node_client()
    n = client.num_examples
    trained(client, PrivateSteps(1.0, 0.0, 0.3, 2000), steps=2000)
    mean = sum(counts) / len(counts)
    spread = sum((count - mean) ** 2 for count in counts) / len(counts)
    assert mean == pytest.approx(0.3 * n, rel=0.03)
    assert spread == pytest.approx(0.3 * 0.7 * n, rel=0.15)  # of a cohort of fixed size it would be 0
    assert {*who} == set(range(n))


def test_draws_and_noise_come_from_the_client_s_secret_alone() -> None:
    steps = PrivateSteps(1.0, 1.0, 0.5, 10)
    first, again, other = node_client(), node_client(), node_client()
    other.secret = Secret.of_simulation(1, "other")
    mine = trained(first, steps)
    close(mine, trained(again, steps), 0.0)
    assert not torch.allclose(*(trained(c, steps)["gnn.layers.0.weight"] for c in (node_client(), other)))
    third = node_client()
    third.secret = Secret(b"k" * 32)
    fourth = node_client()
    fourth.secret = Secret(b"k" * 32)
    asked_of = asked(fourth)
    shifted = {name: slot + 1e-3 for name, slot in asked_of.params.items()}
    noise = [
        {n: after[n] - before[n] for n in after}
        for before, after in (
            (asked(third).params, trained(third, replace(steps, noise=1e4))),
            (shifted, PrivateFit(replace(asked_of, params=shifted), replace(steps, noise=1e4)).alone(fourth).params),
        )
    ]
    # another start gets other noise: else the difference of two answers would be without
    assert not torch.allclose(noise[0]["gnn.layers.0.weight"], noise[1]["gnn.layers.0.weight"], rtol=0.1)


def test_what_comes_back_beside_the_model_is_made_of_noisy_gradients_and_tells_no_loss() -> None:
    client = node_client()
    fitted = PrivateFit(asked(client, mean_gradients=True, steps=1), PrivateSteps(0.5, 2.0, 1.0, 1)).alone(client)
    assert math.isnan(fitted.loss) and fitted.steps == 1 and fitted.gradients is not None
    start = read_params(node_client().model)
    close({n: start[n] - 0.1 * g for n, g in fitted.gradients.items()}, fitted.params)


def test_a_drift_is_added_to_what_is_noisy() -> None:
    client, other = node_client(), node_client()
    drift = {name: torch.ones_like(slot) for name, slot in read_params(client.model).items()}
    with_it = trained(client, PLAIN, drift=((1.0, drift),), steps=1)
    without = trained(other, PLAIN, steps=1)
    close({n: slot + 0.1 for n, slot in with_it.items()}, without)


def test_no_more_steps_are_taken_in_an_answer_than_are_agreed_on() -> None:
    client = node_client()
    steps = replace(PLAIN, most=5)
    trained(client, steps)
    with pytest.raises(BadInput, match="an answer would take 6 steps on examples, and 5 are agreed on"):
        trained(client, steps)
    assert client.state[STEPS_TAKEN]["taken"] == 3
    client.position = Position(0, 1, 1)
    trained(client, steps)  # another exchange is another answer
    assert client.state[STEPS_TAKEN] == {"round": 1, "exchange": 1, "taken": 3, "in_all": 6}


def test_an_epoch_is_as_many_steps_as_show_each_example_once() -> None:
    client = node_client()
    trained(client, replace(PLAIN, fraction=0.3), steps=2, step_unit="epoch")
    assert client.state[STEPS_TAKEN]["taken"] == 8


def test_two_fits_of_one_answer_have_noise_of_their_own() -> None:
    steps = PrivateSteps(1e-6, 1e6, 1.0, 10)
    client = node_client()
    start = read_params(client.model)
    fits = [PrivateFit(asked(client, params=start, steps=1), steps).alone(client).params for _ in range(2)]
    assert not torch.allclose(fits[0]["gnn.layers.0.weight"], fits[1]["gnn.layers.0.weight"])


def test_who_has_no_example_gives_back_what_it_was_sent() -> None:
    data = toy_graph()
    client = toy_client(
        data.with_masks({**data.masks, "train": torch.zeros(data.num_nodes, dtype=torch.bool)}), model=ON_NODES
    )
    close(trained(client, PrivateSteps(1.0, 1.0, 0.5, 1)), read_params(toy_client(model=ON_NODES).model), 0.0)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (ModelSpec(GCN()), "the model reads edges"),
        (ModelSpec(GAP()), "the model reads edges"),
        (ModelSpec(MLP(batch_norm=True)), "statistics of all examples together"),
    ],
)
def test_models_in_which_examples_are_not_apart_are_refused(model: ModelSpec, words: str) -> None:
    client = node_client(model)
    with pytest.raises(BadInput, match=words):
        trained(client, PLAIN)


def test_links_and_steps_within_steps_are_refused() -> None:
    with pytest.raises(BadInput, match="graphs, or nodes"):
        Examples.of(node_client().model, object())
    client = node_client()
    with pytest.raises(BadInput, match="steps within steps"):
        trained(client, PLAIN, envelope=Envelope(1.0, 2, 0.1))

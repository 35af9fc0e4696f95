"""Link tasks: message edges apart from supervision links, losses and metrics by hand, batches, bad input."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as reference
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor

from isthmus.core.errors import BadInput
from isthmus.core.random import seeded, torch_generator
from isthmus.data.dividing import RatioSplit
from isthmus.data.link_graph import LinkGraph
from isthmus.learn.batching import Batching, FullBatch, LinkBatch, NeighborBatch
from isthmus.learn.metrics.several_tasks import BINARY
from isthmus.learn.tasks import LinkClassification, LinkPrediction, link_classification, link_prediction
from isthmus.learn.tasks.link_classification import LinkOutcomes
from isthmus.learn.tasks.link_prediction import PAIR_METRICS
from isthmus.learn.tasks.link_task import LinkTask, PreparedLinks, link_part
from isthmus.models import GCN, GIN, HadamardMLPDecoder, MLPDecoder, Model, ModelSpec
from isthmus.models.readouts import MeanReadout
from tests.learn.tasks.link_toys import known_pairs, toy_facts, toy_ratings

ALL_RANKS = ("hits@1", "hits@5", "hits@10", "mrr")
CLASSIFICATION = LinkClassification(metrics=("accuracy", "loss", *ALL_RANKS))
PREDICTION = LinkPrediction(metrics=("accuracy", "loss", "auc", "ap", *ALL_RANKS), num_negatives=2)
BY_RELATION = replace(PREDICTION, by_relation=True)
TASKS: dict[str, LinkTask] = {"classification": CLASSIFICATION, "prediction": PREDICTION, "by relation": BY_RELATION}


def model_for(task: LinkTask, data: LinkGraph, dropout: float = 0.0) -> Model:
    with seeded(0, "model"):
        return ModelSpec(GCN(hidden=6, dropout=dropout), decoder=HadamardMLPDecoder(hidden=5)).build(
            task.input_dim(data), task.output_dim(data)
        )


def edges_of(graph: Any) -> set[tuple[int, int]]:
    kept = torch.ones(graph.num_edges, dtype=torch.bool) if graph.kept is None else graph.kept
    return set(map(tuple, graph.edge_index[:, kept].t().tolist()))


def pairs_of(data: LinkGraph, chosen: Tensor) -> set[tuple[int, int]]:
    return set(map(tuple, data.links[:, chosen].t().tolist()))


def distinct_facts() -> LinkGraph:
    """Return facts of which no two join the same nodes, and none is a loop."""
    pairs = torch.combinations(torch.arange(9))  # 36 pairs
    order = torch.randperm(36, generator=torch_generator(0, "order"))
    links = pairs[order].t().contiguous()
    return replace(toy_facts(9, 36), links=links)


# ---- message edges


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_no_validation_or_test_link_is_in_the_message_graph(task: LinkTask) -> None:
    data = distinct_facts()
    prepared = task.prepare(data)
    train, held = data.mask("train"), ~data.mask("train")
    there = pairs_of(data, train)
    assert edges_of(prepared.graph) == there | {(b, a) for a, b in there}
    assert not edges_of(prepared.graph) & (pairs_of(data, held) | {(b, a) for a, b in pairs_of(data, held)})


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_every_graph_that_the_model_is_given_has_training_links_only(
    task: LinkTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = replace(distinct_facts(), x=torch.arange(9.0).unsqueeze(1))  # a node's feature is its number
    prepared, model = task.prepare(data), model_for(task, data)
    train = pairs_of(data, data.mask("train"))
    allowed = train | {(b, a) for a, b in train}
    seen: list[set[tuple[int, int]]] = []
    embed = Model.embed

    def watched(self: Model, graph: Any, generator: Any) -> Tensor:
        number = graph.x[:, 0].long().tolist()
        seen.append({(number[a], number[b]) for a, b in edges_of(graph)})
        return embed(self, graph, generator)

    monkeypatch.setattr(Model, "embed", watched)
    task.evaluate(model, prepared, ("train", "val", "test"))
    task.evaluate_groups(model, prepared, "test", [torch.arange(36)])
    task.predict(model, prepared)
    generator = torch_generator(0, "fit")
    for batching in (FullBatch(), LinkBatch(batch_size=5), NeighborBatch(5, (3, 2)), NeighborBatch(5, (-1, -1))):
        task.loss(model, next(task.batches(prepared, batching, generator)), generator)
    assert len(seen) == 7 and all(edges and edges <= allowed for edges in seen)


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_held_out_links_change_nothing_that_the_model_reads(task: LinkTask) -> None:
    data = distinct_facts()  # a held-out link that is a training link as well takes that one out
    other = data.links.clone()
    held = ~data.mask("train")
    other[:, held] = other[:, held].flip(1)
    first, second = task.prepare(data).graph, task.prepare(replace(data, links=other)).graph
    assert torch.equal(first.edge_index, second.edge_index)


def table(*rows: tuple[int, int, int, str], undirected: bool) -> LinkGraph:
    """Return links given as (head, tail, label, split)."""
    made = replace(toy_facts(6, len(rows)), undirected=undirected)
    masks = {split: torch.tensor([row[3] == split for row in rows]) for split in ("train", "val", "test")}
    links = torch.tensor([row[:2] for row in rows]).t().contiguous()
    return replace(made, links=links, label=torch.tensor([row[2] for row in rows]), masks=masks)


REPEATED = (
    *((0, 1, 0, "train"), (0, 1, 0, "test")),  # the same link twice
    *((2, 3, 0, "train"), (3, 2, 0, "val")),  # the other direction is held out
    *((1, 4, 0, "train"), (1, 4, 1, "test")),  # another relation is held out
    (4, 5, 2, "train"),
    *((0, 5, 1, "train"), (0, 5, 1, "train"), (5, 0, 1, "train")),  # repeated, but all for training
    (2, 5, 1, ""),  # in no split: to be predicted
)


@pytest.mark.parametrize(
    ("task", "undirected", "pairs"),
    [
        *((task, True, {(4, 5), (0, 5)}) for task in TASKS.values()),
        (CLASSIFICATION, False, {(2, 3), (1, 4), (4, 5), (0, 5)}),
        (BY_RELATION, False, {(2, 3), (1, 4), (4, 5), (0, 5)}),
        (PREDICTION, False, {(2, 3), (4, 5), (0, 5)}),
    ],
)
def test_a_training_link_that_is_a_held_out_one_too_carries_no_message_and_is_supervised(
    task: LinkTask, undirected: bool, pairs: set[tuple[int, int]]
) -> None:
    data = table(*REPEATED, undirected=undirected)
    prepared = task.prepare(data)
    assert edges_of(prepared.graph) == pairs | {(b, a) for a, b in pairs}
    step = next(task.batches(prepared, FullBatch(), torch_generator(0, "fit")))
    train = pairs_of(data, data.mask("train"))
    assert train <= set(map(tuple, step.pairs.t().tolist())) and (0, 1) in train
    assert prepared.edge_of[:, :2].tolist() == [[-1, -1], [-1, -1]], "neither of the two has an edge"


@pytest.mark.parametrize("batching", [FullBatch(), LinkBatch(4), NeighborBatch(4, (-1, -1))])
@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_no_held_out_link_of_repeated_and_reversed_ones_has_a_message_edge_when_drawn_at_random(
    task: LinkTask, batching: Batching
) -> None:
    once = toy_facts(8, 30)
    both = torch.cat([once.links, once.links[:, :20].flip(0), once.links[:, 5:15]], dim=1)
    data = replace(toy_facts(8, 60), links=both, undirected=True, x=torch.arange(8.0).unsqueeze(1))
    data = RatioSplit(0.7, 0.1, 0.2).apply(data, np.random.default_rng(3))
    prepared = task.prepare(data)
    held = pairs_of(data, data.mask("val") | data.mask("test"))
    assert held & pairs_of(data, data.mask("train")), "else there is nothing to see"
    step = next(task.batches(prepared, batching, torch_generator(0, "fit")))
    number = step.graph.x[:, 0].long()  # type: ignore[index]
    read = {(int(number[a]), int(number[b])) for a, b in edges_of(step.graph)}
    for edges in (edges_of(prepared.graph), read):
        assert edges and not edges & (held | {(b, a) for a, b in held})


def test_loops_carry_no_message_and_parallel_links_carry_one() -> None:
    data = toy_facts()
    prepared = CLASSIFICATION.prepare(data)
    assert bool((data.links[0] == data.links[1])[data.mask("train")].any())
    columns = list(map(tuple, prepared.graph.edge_index.t().tolist()))
    assert len(columns) == len(set(columns)) and all(a != b for a, b in columns)


def test_each_link_knows_its_two_message_edges() -> None:
    data = toy_facts()
    prepared = CLASSIFICATION.prepare(data)
    columns = list(map(tuple, prepared.graph.edge_index.t().tolist()))
    for number, (head, tail) in enumerate(data.links.t().tolist()):
        expected = [columns.index(p) if p in columns else -1 for p in ((head, tail), (tail, head))]
        assert prepared.edge_of[:, number].tolist() == expected


@pytest.mark.parametrize("batching", [FullBatch(), LinkBatch(batch_size=4), NeighborBatch(4, (-1, -1))])
@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_disjoint_steps_supervise_no_link_whose_ends_exchange_messages(task: LinkTask, batching: Batching) -> None:
    data = replace(toy_facts(), x=torch.arange(12.0).unsqueeze(1))  # a node's feature is its number
    apart = replace(task, disjoint=True, supervised_share=0.25)
    prepared = apart.prepare(data)
    steps = apart.batches(prepared, batching, torch_generator(0, "fit"))
    for _ in range(6):
        step = next(steps)
        number = step.graph.x[:, 0].long()  # type: ignore[index]
        edges = {(int(number[a]), int(number[b])) for a, b in edges_of(step.graph)}
        links = step.target > 0 if isinstance(task, LinkPrediction) else torch.ones(len(step.target), dtype=torch.bool)
        supervised = {(int(number[a]), int(number[b])) for a, b in step.pairs[:, links].t().tolist()}
        assert edges and supervised and not edges & (supervised | {(b, a) for a, b in supervised})


def test_disjoint_full_batches_supervise_another_share_each_time() -> None:
    prepared = CLASSIFICATION.prepare(toy_facts())
    steps = replace(CLASSIFICATION, disjoint=True, supervised_share=0.25).batches(
        prepared, FullBatch(), torch_generator(0, "fit")
    )
    drawn = [next(steps).pairs for _ in range(3)]
    assert [pairs.shape[1] for pairs in drawn] == [6, 6, 6]  # of 24 training links
    assert not torch.equal(drawn[0], drawn[1])


# ---- batches


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_batches_of_links_show_every_training_link_once_an_epoch(task: LinkTask) -> None:
    data = toy_facts()
    prepared, batching = task.prepare(data), LinkBatch(batch_size=7)
    number = task.batches_per_epoch(prepared, batching)
    steps = task.batches(prepared, batching, torch_generator(0, "fit"))
    assert number == 4
    per_link = 1 if isinstance(task, LinkClassification) else 3
    seen: list[tuple[int, int]] = []
    for size in (7, 7, 7, 3):
        step = next(steps)
        assert step.pairs.shape[1] == size * per_link
        seen += map(tuple, step.pairs[:, :size].t().tolist())
    assert sorted(seen) == sorted(map(tuple, data.links[:, data.mask("train")].t().tolist()))


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_a_whole_neighbourhood_gives_the_loss_of_the_whole_graph(task: LinkTask) -> None:
    data = toy_facts()
    prepared, model = task.prepare(data), model_for(task, data)
    full = next(task.batches(prepared, LinkBatch(8), torch_generator(0, "fit")))
    near = next(task.batches(prepared, NeighborBatch(8, (-1, -1, -1)), torch_generator(0, "fit")))
    losses = [task.loss(model, step, torch_generator(0, "drop")) for step in (full, near)]
    assert torch.allclose(*losses, atol=1e-6)


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_full_batches_repeat_the_training_links(task: LinkTask) -> None:
    prepared = task.prepare(toy_facts())
    steps = task.batches(prepared, FullBatch(), torch_generator(0, "fit"))
    first, second = next(steps), next(steps)
    assert task.batches_per_epoch(prepared, FullBatch()) == 1
    assert torch.equal(first.pairs[:, :24], second.pairs[:, :24]) and first.graph is second.graph
    if isinstance(task, LinkPrediction):
        assert not torch.equal(first.pairs, second.pairs)  # other negatives


def test_an_unknown_batching_is_refused() -> None:
    prepared = CLASSIFICATION.prepare(toy_facts())
    with pytest.raises(BadInput, match="tasks on links take 'full', 'links' or 'neighbor'"):
        next(CLASSIFICATION.batches(prepared, Batching(), torch_generator(0, "fit")))


# ---- losses and metrics


def plain_scores(model: Model, prepared: PreparedLinks, pairs: list[tuple[int, int]]) -> Tensor:
    """Return the scores of pairs, one pair at a time."""
    with torch.no_grad():
        h = model.embed(prepared.graph, None)
        return torch.cat([link_part(model)(h[[a]], h[[b]], None) for a, b in pairs])


def test_the_loss_of_a_classification_is_the_mean_negative_log_probability() -> None:
    data = toy_facts()
    prepared, model = CLASSIFICATION.prepare(data), model_for(CLASSIFICATION, data)
    step = next(CLASSIFICATION.batches(prepared, FullBatch(), torch_generator(0, "fit")))
    train = data.mask("train").nonzero().flatten().tolist()
    logits = plain_scores(model, prepared, [tuple(data.links[:, i].tolist()) for i in train])
    by_hand = [-math.log(logits[k].exp()[data.label[i]] / logits[k].exp().sum()) for k, i in enumerate(train)]
    assert CLASSIFICATION.loss(model, step, torch_generator(0, "drop")).item() == pytest.approx(
        sum(by_hand) / len(by_hand), rel=1e-5
    )


@pytest.mark.parametrize("task", [PREDICTION, BY_RELATION], ids=["pairs", "by relation"])
def test_the_loss_of_a_prediction_tells_links_from_negatives(task: LinkPrediction) -> None:
    data = toy_facts()
    prepared, model = task.prepare(data), model_for(task, data)
    step = next(task.batches(prepared, FullBatch(), torch_generator(0, "fit")))
    assert step.target.tolist() == [1.0] * 24 + [0.0] * 48
    assert set(step.relation.tolist()) == ({0, 1, 2} if task.by_relation else {0})
    all_scores = plain_scores(model, prepared, list(map(tuple, step.pairs.t().tolist())))
    scores = [float(all_scores[k, r]) for k, r in enumerate(step.relation.tolist())]
    by_hand = [-math.log(1 / (1 + math.exp(-s if t else s))) for s, t in zip(scores, step.target.tolist(), strict=True)]
    assert task.loss(model, step, torch_generator(0, "drop")).item() == pytest.approx(sum(by_hand) / 72, rel=1e-5)


@pytest.mark.meet(2)
@pytest.mark.parametrize("undirected", [False, True])
@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("numbers", [4, 4_000_000])
def test_a_classification_is_measured_as_a_loop_would(
    numbers: int, filtered: bool, undirected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_classification, "MAX_SCORES", numbers)
    # So many nodes that some pairs are for training only: no others carry messages where links are undirected.
    data = toy_facts(14 if undirected else 6, 60, 12, undirected=undirected)
    prepared = CLASSIFICATION.prepare(data)
    if undirected:
        back = {(b, a) for a, b in pairs_of(data, ~data.mask("train"))}
        assert prepared.graph.num_edges and back & pairs_of(data, data.mask("train"))
    task = replace(CLASSIFICATION, filtered=filtered)
    prepared, model = task.prepare(data), model_for(task, data)
    found, counts = task.evaluate(model, prepared, ("val", "test"))
    facts = known_pairs(data, True, True)
    for split in ("val", "test"):
        links = data.mask(split).nonzero().flatten().tolist()
        logits = plain_scores(model, prepared, [tuple(data.links[:, i].tolist()) for i in links]).double()
        ranks = []
        for k, i in enumerate(links):
            head, tail, label = *data.links[:, i].tolist(), int(data.label[i])
            others = [c for c in range(12) if c != label and not (filtered and (head, tail, c) in facts)]
            ahead = [float(logits[k, c] > logits[k, label]) for c in others]
            ranks.append(1 + sum(ahead) + 0.5 * sum(float(logits[k, c] == logits[k, label]) for c in others))
        losses = [-float(logits[k].log_softmax(0)[data.label[i]]) for k, i in enumerate(links)]
        right = [int(logits[k].argmax()) == int(data.label[i]) for k, i in enumerate(links)]
        expected = {f"hits@{n}": sum(r <= n for r in ranks) / len(links) for n in (1, 5, 10)}
        expected |= {"mrr": sum(1 / r for r in ranks) / len(links), "accuracy": sum(right) / len(links)}
        expected["loss"] = sum(losses) / len(losses)
        assert found[split] == pytest.approx(expected, rel=1e-5) and counts[split] == len(links)


@pytest.mark.parametrize("data", [toy_facts(), toy_ratings()], ids=["facts", "ratings"])
@pytest.mark.parametrize("task", [PREDICTION, BY_RELATION], ids=["pairs", "by relation"])
def test_a_prediction_is_measured_on_links_and_as_many_fixed_negatives(
    task: LinkPrediction, data: LinkGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_prediction, "MAX_SCORES", 12)  # two pairs at a time
    prepared, model = task.prepare(data), model_for(task, data)
    found, counts = task.evaluate(model, prepared, ("train", "val", "test"))
    known = known_pairs(data, task.by_relation, False)
    for split in ("val", "test"):
        links = data.mask(split).nonzero().flatten()
        wrong, kind = task._negatives(prepared, split)
        assert wrong.shape[1] == 2 * len(links)
        triples = zip(*wrong.tolist(), kind.tolist(), strict=True)
        assert not set(triples) & known
        relation = torch.cat([data.label[links] if task.by_relation else torch.zeros_like(links), kind])
        pairs = list(map(tuple, torch.cat([data.links[:, links], wrong], dim=1).t().tolist()))
        scores = plain_scores(model, prepared, pairs)[torch.arange(len(pairs)), relation]
        truth = torch.cat([torch.ones(len(links)), torch.zeros(2 * len(links))])
        right = ((scores > 0) == (truth > 0)).double().mean()
        assert found[split]["auc"] == pytest.approx(roc_auc_score(truth, scores))
        assert found[split]["ap"] == pytest.approx(average_precision_score(truth, scores))
        assert found[split]["accuracy"] == pytest.approx(float(right))
        assert counts[split] == len(links)
    assert found["train"].keys() == {"accuracy", "loss", "auc", "ap"}  # training links are not ranked
    assert found["val"].keys() == set(task.metrics)


def test_evaluations_repeat_to_the_bit_on_data_prepared_anew() -> None:
    data = toy_facts()
    model = model_for(PREDICTION, data)
    first, second = (PREDICTION.evaluate(model, PREDICTION.prepare(data), ("train", "val", "test")) for _ in range(2))
    assert first == second
    other = replace(PREDICTION, evaluation_seed=1)
    assert other.evaluate(model, other.prepare(data), ("val",))[0]["val"] != first[0]["val"]


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_a_diverged_model_has_no_metrics(task: LinkTask) -> None:
    data = toy_facts()
    prepared, model = task.prepare(data), model_for(task, data)
    sound, counts = task.evaluate(model, prepared, ("train", "val", "test"))
    assert all(sound.values())
    with torch.no_grad():
        next(model.parameters()).fill_(math.nan)
    found, same = task.evaluate(model, prepared, ("train", "val", "test"))
    assert found == {"train": {}, "val": {}, "test": {}} and same == counts
    assert task.evaluate_groups(model, prepared, "test", [torch.arange(data.num_items)]) == [{}]


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_where_a_score_of_a_pair_is_not_finite_every_metric_is_undefined(odd: float) -> None:
    scores, is_link = torch.tensor([0.5, -1.0, 2.0, -0.5]), torch.tensor([1.0, 1.0, 0.0, 0.0])
    for name, measure in link_prediction.PAIR_METRICS.items():
        assert math.isfinite(measure(scores, is_link)), name
        assert math.isnan(measure(scores.index_fill(0, torch.tensor([2]), odd), is_link)), name


def test_at_most_so_many_links_are_ranked_spread_over_the_split() -> None:
    data = toy_facts(12, 100)
    some, everything = replace(PREDICTION, max_ranked=6), PREDICTION
    model = model_for(PREDICTION, data)
    h = some.embed(model, some.prepare(data)).detach()
    ranked = some.outcomes(model, some.prepare(data), h, "test").ranks
    full = everything.outcomes(model, everything.prepare(data), h, "test").ranks
    assert (~ranked[0].isnan()).nonzero().flatten().tolist() == [0, 4, 8, 12, 16]  # of 20, at most 6
    assert not full.isnan().any() and torch.equal(ranked[:, ::4], full[:, ::4])


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_groups_are_measured_as_their_links_alone(task: LinkTask) -> None:
    data = toy_facts(12, 60)
    prepared, model = task.prepare(data), model_for(task, data)
    test = data.mask("test").nonzero().flatten()
    groups = [torch.arange(60), torch.cat([test[:4], data.mask("train").nonzero().flatten()]), torch.tensor([0])]
    whole, some, none = task.evaluate_groups(model, prepared, "test", groups)
    assert whole == task.evaluate(model, prepared, ("test",))[0]["test"]
    assert some.keys() == whole.keys() and some != whole
    assert none == {}  # link 0 is for training
    if isinstance(task, LinkClassification):
        mask = torch.zeros(60, dtype=torch.bool).index_fill_(0, test[:4], True)
        alone = replace(data, masks={**data.masks, "test": mask})
        assert some == task.evaluate(model, task.prepare(alone), ("test",))[0]["test"]


# ---- predictions


def test_predictions_of_classes_are_probabilities_of_every_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_classification, "MAX_SCORES", 9)
    data = toy_facts()
    prepared, model = CLASSIFICATION.prepare(data), model_for(CLASSIFICATION, data)
    found = CLASSIFICATION.predict(model, prepared)
    logits = plain_scores(model, prepared, list(map(tuple, data.links.t().tolist())))
    assert torch.equal(found.ids, data.link_ids) and torch.allclose(found.probabilities, logits.softmax(1), atol=1e-6)


def test_predictions_of_links_are_two_probabilities() -> None:
    data = toy_facts()
    prepared, model = PREDICTION.prepare(data), model_for(PREDICTION, data)
    found = PREDICTION.predict(model, prepared).probabilities
    score = plain_scores(model, prepared, list(map(tuple, data.links.t().tolist())))[:, 0]
    assert torch.allclose(found[:, 1], score.sigmoid(), atol=1e-6)
    assert torch.allclose(found.sum(dim=1), torch.ones(40))


def test_a_table_of_links_has_scores_and_where_they_count_relations() -> None:
    data = replace(toy_facts(), label=torch.where(torch.arange(40) == 5, -1, toy_facts().label))
    for task in (PREDICTION, BY_RELATION):
        model = model_for(task, data)
        found = task.predict(model, task.prepare(data))
        table = found.columns(("likes", "hates", "knows"))
        assert list(table)[-2:] == ["score", "probability"]
        score, probability = torch.as_tensor(table["score"]), torch.as_tensor(table["probability"])
        assert torch.allclose(score.sigmoid(), probability, atol=1e-6, equal_nan=True)
        if task is BY_RELATION:
            assert table["relation"][4:6] == [("likes", "hates", "knows")[int(data.label[4])], ""]
            assert score.isnan().nonzero().flatten().tolist() == [5], "nobody said which relation is asked about"
        else:
            assert list(table) == ["score", "probability"] and not bool(score.isnan().any())


def test_classes_are_predicted_where_the_data_does_not_say_how_many_there_are() -> None:
    data = toy_facts()
    model = model_for(CLASSIFICATION, data)
    unknown = replace(data, label=torch.full((40,), -1), num_classes=0)
    expected = CLASSIFICATION.predict(model, CLASSIFICATION.prepare(data)).probabilities
    found = CLASSIFICATION.predict(model, CLASSIFICATION.prepare(unknown)).probabilities
    assert found.shape == (40, 3) and torch.allclose(found, expected)


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_without_a_split_a_finished_model_reads_all_links(task: LinkTask) -> None:
    data = distinct_facts()
    assert task.to_predict(data) is data, "a split that is there says which links may be read"
    nowhere = torch.zeros(data.num_items, dtype=torch.bool)
    for masks in ({}, dict.fromkeys(("train", "val", "test"), nowhere)):
        prepared = task.prepare(task.to_predict(data.with_masks(masks)))
        there = pairs_of(data, ~nowhere)
        assert edges_of(prepared.graph) == there | {(b, a) for a, b in there}


def test_outputs_have_the_names_of_classes_where_they_are_classes() -> None:
    data = replace(toy_facts(), class_names=("likes", "hates", "knows"))
    assert CLASSIFICATION.output_names(data) == BY_RELATION.output_names(data) == data.class_names
    assert PREDICTION.output_names(data) == () and not PREDICTION.outputs_are_classes


# ---- what a client holds, and bad input


def test_counts_dimensions_and_words() -> None:
    data = replace(toy_facts(), label=torch.where(torch.arange(40) < 5, -1, toy_facts().label))
    assert [CLASSIFICATION.count(data, split) for split in ("train", "val", "test")] == [21, 7, 7]
    assert [BY_RELATION.count(data, split) for split in ("train", "val", "test")] == [21, 7, 7]
    assert [PREDICTION.count(data, split) for split in ("train", "val", "test")] == [24, 8, 8]
    assert (CLASSIFICATION.output_dim(data), PREDICTION.output_dim(data), BY_RELATION.output_dim(data)) == (3, 1, 3)
    assert CLASSIFICATION.holds(data) == "12 nodes, 40 links, 21/7/7 train/val/test"


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_a_client_without_training_links_is_idle(task: LinkTask) -> None:
    none = torch.zeros(40, dtype=torch.bool)
    data = toy_facts().with_masks({"train": none, "val": none, "test": none})
    prepared, model = task.prepare(data), model_for(task, data)
    assert task.count(data, "train") == 0 and task.batches_per_epoch(prepared, FullBatch()) == 0
    assert list(task.batches(prepared, FullBatch(), torch_generator(0, "fit"))) == []
    assert task.evaluate(model, prepared, ("train", "val")) == ({"train": {}, "val": {}}, {"train": 0, "val": 0})
    assert prepared.graph.num_edges == 0
    assert len(task.predict(model, prepared).ids) == 40


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_a_client_without_any_link_is_idle(task: LinkTask) -> None:
    [data] = toy_facts().divide([torch.empty(0, dtype=torch.int64)])
    prepared, model = task.prepare(data), model_for(task, data)
    assert list(task.batches(prepared, FullBatch(), torch_generator(0, "fit"))) == []
    assert task.evaluate(model, prepared, ("train",)) == ({"train": {}}, {"train": 0})


def test_a_split_without_links_has_no_metrics_beside_one_that_has() -> None:
    data = toy_facts()
    data = data.with_masks({"train": data.mask("train"), "val": data.mask("val")})
    for task in TASKS.values():
        found, counts = task.evaluate(model_for(task, data), task.prepare(data), ("train", "test"))
        assert found["train"] and found["test"] == {} and counts["test"] == 0


def test_a_dataset_without_links_or_training_links_is_refused() -> None:
    data = toy_facts()
    model = model_for(CLASSIFICATION, data)
    [empty] = data.divide([torch.empty(0, dtype=torch.int64)])
    with pytest.raises(BadInput, match="'toy facts' has no links"):
        CLASSIFICATION.require_model(model, empty)
    with pytest.raises(BadInput, match="none of the 40 links of the dataset 'toy facts' is a training example"):
        CLASSIFICATION.require_model(model, data.with_masks({}))


def test_classes_are_not_learned_where_there_is_one_but_links_are() -> None:
    data = replace(toy_facts(num_relations=1), masks=toy_facts().masks)
    with pytest.raises(BadInput, match=r"all 40 links of the dataset 'toy facts' are of one class.*=link_prediction"):
        CLASSIFICATION.require_model(model_for(CLASSIFICATION, data), data)
    PREDICTION.require_model(model_for(PREDICTION, data), data)


def test_nodes_without_features_are_refused() -> None:
    with pytest.raises(BadInput, match=r"'toy facts' have no features.*dataset.features=constant"):
        CLASSIFICATION.input_dim(replace(toy_facts(), x=torch.empty(12, 0)))


def test_a_model_without_a_link_decoder_is_refused() -> None:
    data = toy_facts()
    for decoder, found in ((None, "has no decoder"), (MLPDecoder(), "has the decoder Perceptron")):
        with pytest.raises(BadInput, match=f"the model {found}.*hadamard_mlp, distmult, bilinear or dot"):
            CLASSIFICATION.require_model(ModelSpec(GCN(), decoder=decoder).build(4, 3), data)
    CLASSIFICATION.require_model(model_for(CLASSIFICATION, data), data)


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_a_model_with_a_readout_or_for_features_of_edges_is_refused(task: LinkTask) -> None:
    data = toy_facts()
    for spec, words in (
        (ModelSpec(GCN(), readout=MeanReadout(), decoder=HadamardMLPDecoder()), "the examples are links; set model.re"),
        (ModelSpec(GIN(edge_dim=3), decoder=HadamardMLPDecoder()), "edge_dim is 3, .* set model.gnn.edge_dim=0"),
    ):
        with pytest.raises(BadInput, match=words):
            task.require_model(spec.build(4, 3), data)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"num_negatives": 0}, "num_negatives is 0"),
        ({"max_ranked": 0}, "max_ranked is 0"),
        ({"supervised_share": 1.0}, "supervised_share is 1.0"),
        ({"metrics": ("f1_macro",)}, "choose from accuracy, loss, roc_auc, auc, ap, f1, hits@1"),
    ],
)
def test_bad_fields_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        LinkPrediction(**fields)


def by_counting(logits: Tensor, label: Tensor) -> dict[str, float]:
    """Return the metrics of classification by their definitions, pair by pair and threshold by threshold."""
    classes, predicted = range(logits.shape[1]), logits.argmax(dim=1).tolist()
    true = label.tolist()
    present = sorted(set(true))
    f1 = []
    for c in sorted({*true, *predicted}):
        hits = sum(t == p == c for t, p in zip(true, predicted, strict=True))
        f1.append(2 * hits / (true.count(c) + predicted.count(c)))
    area, precision = [], []
    for c in [1] if len(classes) == 2 else present:
        odds = logits.double().softmax(dim=1)[:, c].logit().tolist()
        yes = [o for o, t in zip(odds, true, strict=True) if t == c]
        no = [o for o, t in zip(odds, true, strict=True) if t != c]
        area.append(sum((a > b) + 0.5 * (a == b) for a in yes for b in no) / (len(yes) * len(no)))
        found, total = 0, 0.0
        for cut in sorted(set(odds), reverse=True):
            hits = sum(o >= cut for o in yes)
            total += (hits - found) / len(yes) * hits / (hits + sum(o >= cut for o in no))
            found = hits
        precision.append(total)
    return {
        "accuracy": sum(t == p for t, p in zip(true, predicted, strict=True)) / len(true),
        "f1_micro": sum(t == p for t, p in zip(true, predicted, strict=True)) / len(true),
        "f1_macro": sum(f1) / len(f1),
        "roc_auc": sum(area) / len(area),
        "ap": sum(precision) / len(precision),
    }


@pytest.mark.parametrize("num_classes", [2, 4])
def test_classes_of_links_have_the_metrics_of_classes_of_nodes(num_classes: int) -> None:
    draw = torch.Generator().manual_seed(0)
    logits, label = torch.randn(60, num_classes, generator=draw), torch.randint(num_classes, (60,), generator=draw)
    names = ("accuracy", "f1_micro", "f1_macro", "roc_auc", "ap")
    task = LinkClassification(metrics=names)
    right = (logits.argmax(dim=1) == label).double()
    found = task.measured(LinkOutcomes(torch.zeros(60), right, torch.zeros(60), logits, label))
    assert found == pytest.approx(by_counting(logits, label), abs=1e-9) and tuple(found) == names
    assert found["f1_macro"] == pytest.approx(reference.f1_score(label, logits.argmax(dim=1), average="macro"))
    chosen = logits.double().softmax(dim=1).numpy()
    told = chosen[:, 1] if num_classes == 2 else chosen
    area = reference.roc_auc_score(label, told, **({} if num_classes == 2 else {"multi_class": "ovr"}))
    assert found["roc_auc"] == pytest.approx(area)
    shown = label.numpy() if num_classes == 2 else np.eye(num_classes)[label.numpy()]
    assert found["ap"] == pytest.approx(reference.average_precision_score(shown, told))


def test_f1_and_the_area_of_link_prediction_are_those_of_binary_tasks() -> None:
    draw = torch.Generator().manual_seed(1)
    scores, is_link = torch.randn(50, generator=draw), (torch.rand(50, generator=draw) < 0.4).float()
    for name in ("accuracy", "loss", "roc_auc", "ap", "f1"):
        expected = BINARY[name](scores[:, None], is_link[:, None])
        assert PAIR_METRICS[name](scores, is_link) == pytest.approx(expected, abs=1e-9), name
    assert PAIR_METRICS["auc"](scores, is_link) == PAIR_METRICS["roc_auc"](scores, is_link)

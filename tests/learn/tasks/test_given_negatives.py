"""Pairs that are told to be no links: examples of link prediction, and never a link, whoever asks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch
from sklearn import metrics as reference
from torch import Tensor

from isthmus.algorithms.fedgnn.user_items import interactions
from isthmus.core.errors import BadInput
from isthmus.core.random import seeded, torch_generator
from isthmus.data.folders.link_folder import read_link_folder, write_link_folder
from isthmus.data.link_graph import LinkGraph
from isthmus.data.splitters.facts import item_values
from isthmus.data.survey.statistics import simple_edges
from isthmus.learn.batching import FullBatch, LinkBatch
from isthmus.learn.tasks import LinkClassification, LinkPrediction
from isthmus.learn.tasks.known_links import KnownLinks, has_negatives
from isthmus.learn.tasks.link_task import PreparedLinks, link_part
from isthmus.models import GCN, HadamardMLPDecoder, Model, ModelSpec
from tests.learn.tasks.link_toys import toy_facts, toy_ratings

TASK = LinkPrediction(metrics=("accuracy", "loss", "roc_auc", "ap", "f1", "hits@1", "mrr"), num_negatives=2)


def with_negatives(data: LinkGraph, splits: Sequence[str] = ("train", "val", "test")) -> LinkGraph:
    """Return the links with as many pairs beside them that are none, and a pair of which nothing is known in each."""
    known = KnownLinks.of(data, False, False)
    wrong, _ = known.negatives(data.links, torch.zeros_like(data.label), 1, torch_generator(0, "wrong"))
    keep = sum((data.mask(split) for split in splits), torch.zeros(data.num_items)) > 0
    wrong, where = wrong[:, keep], {split: mask[keep] for split, mask in data.masks.items()}
    count = wrong.shape[1]
    linked = torch.cat([torch.ones(data.num_items), torch.zeros(count), torch.tensor([-1.0])]).long()
    asked = torch.tensor([[0], [1]])
    return replace(
        data,
        links=torch.cat([data.links, wrong, asked], dim=1),
        label=linked,
        num_classes=2,
        link_ids=torch.arange(len(linked)),
        masks={split: torch.cat([data.masks[split], where[split], torch.tensor([True])]) for split in data.masks}
        | {split: torch.cat([data.masks[split], where[split], torch.tensor([False])]) for split in ("val", "test")},
        linked=linked,
        negatives="0",
    )


def links_alone(data: LinkGraph) -> LinkGraph:
    """Return what is left of such data without all pairs that are no links."""
    assert data.linked is not None
    kept = data.linked == 1
    masks = {split: mask[kept] for split, mask in data.masks.items()}
    ids = data.link_ids[kept]
    return replace(data, links=data.links[:, kept], label=data.label[kept], link_ids=ids, masks=masks, linked=None)


def model_for(data: LinkGraph) -> Model:
    with seeded(0, "model"):
        return ModelSpec(GCN(hidden=6, dropout=0.0), decoder=HadamardMLPDecoder(hidden=5)).build(data.num_features, 1)


def plain_scores(model: Model, prepared: PreparedLinks, pairs: Tensor) -> list[float]:
    """Return the scores of pairs, one pair at a time."""
    with torch.no_grad():
        h = model.embed(prepared.graph, None)
        return [float(link_part(model)(h[[a]], h[[b]], None)) for a, b in pairs.t().tolist()]


BOTH = pytest.mark.parametrize("plain", [toy_facts(), toy_facts(undirected=True), toy_ratings()])


@BOTH
def test_the_message_graph_is_that_of_the_links_alone(plain: LinkGraph) -> None:
    data = with_negatives(plain)
    alone = links_alone(data)
    for task in (TASK, LinkClassification()):
        edges = task.prepare(data).graph.edge_index
        assert edges.shape[1] and torch.equal(edges, task.prepare(alone).graph.edge_index)
    asked = TASK.to_predict(data.with_masks({}))
    assert torch.equal(
        TASK.prepare(asked).graph.edge_index, TASK.prepare(TASK.to_predict(alone.with_masks({}))).graph.edge_index
    )


@BOTH
def test_no_pair_that_is_no_link_is_known_as_one(plain: LinkGraph) -> None:
    data = with_negatives(plain)
    found, alone = (KnownLinks.of(each, False, False) for each in (data, links_alone(data)))
    assert torch.equal(found.links, alone.links)
    ends, kind = found.links, found.relation
    for end in (0, 1):
        assert torch.equal(found.room(ends, kind, end), alone.room(ends, kind, end))
    assert has_negatives(data, False, False) and interactions(data)[0].tolist() == interactions(plain)[0].tolist()
    assert torch.equal(simple_edges(data)[0], simple_edges(links_alone(data))[0])
    degree = item_values(data, "degree", "by")
    assert degree[: plain.num_items].tolist() == item_values(plain, "degree", "by").tolist()


@BOTH
def test_ranks_leave_links_out_and_nothing_else(plain: LinkGraph) -> None:
    data = with_negatives(plain)
    alone, model = links_alone(data), model_for(data)
    found, expected = (TASK.evaluate(model, TASK.prepare(each), ("val", "test"))[0] for each in (data, alone))
    for split in ("val", "test"):
        assert [found[split][name] for name in ("hits@1", "mrr")] == [expected[split][n] for n in ("hits@1", "mrr")]
    few = replace(TASK, max_ranked=3)
    h = few.embed(model, few.prepare(data)).detach()
    ranked = ~few.outcomes(model, few.prepare(data), h, "test").ranks[0].isnan()
    index = few.prepare(data).index["test"]
    assert 0 < int(ranked.sum()) <= 3 and bool((data.linked[index][ranked] == 1).all())  # type: ignore[index]


@BOTH
def test_the_loss_is_over_the_given_pairs(plain: LinkGraph) -> None:
    data = with_negatives(plain)
    prepared, model = TASK.prepare(data), model_for(data)
    train = [i for i in data.mask("train").nonzero().flatten().tolist() if data.linked[i] >= 0]  # type: ignore[index]
    step = next(TASK.batches(prepared, FullBatch(), torch_generator(0, "fit")))
    assert torch.equal(step.pairs, data.links[:, train])
    scores = plain_scores(model, prepared, data.links[:, train])
    signs = [1 if data.linked[i] == 1 else -1 for i in train]  # type: ignore[index]
    by_hand = [math.log(1 + math.exp(-sign * score)) for sign, score in zip(signs, scores, strict=True)]
    assert {1, -1} == set(signs)
    assert TASK.loss(model, step, torch_generator(0, "drop")).item() == pytest.approx(sum(by_hand) / len(train), 1e-5)
    again = next(TASK.batches(prepared, FullBatch(), torch_generator(7, "fit")))
    assert torch.equal(again.pairs, step.pairs), "nothing is drawn"
    shown = list(islice(TASK.batches(prepared, LinkBatch(4), torch_generator(0, "b")), 9))
    asked = {tuple(pair) for batch in shown for pair in batch.pairs.t().tolist()}
    assert asked <= {tuple(pair) for pair in data.links[:, train].t().tolist()}


@BOTH
def test_scores_are_those_of_scikit_learn_on_the_given_pairs(plain: LinkGraph) -> None:
    data = with_negatives(plain)
    prepared, model = TASK.prepare(data), model_for(data)
    found, counts = TASK.evaluate(model, prepared, ("train", "val", "test"))
    for split in ("train", "val", "test"):
        chosen = (data.mask(split) & (data.linked >= 0)).nonzero().flatten()  # type: ignore[operator]
        truth, scores = data.label[chosen].tolist(), plain_scores(model, prepared, data.links[:, chosen])
        said = [int(score > 0) for score in scores]
        chance = [1 / (1 + math.exp(-score)) for score in scores]
        assert counts[split] == len(chosen) == TASK.count(data, split)
        assert found[split] | {"hits@1": 0, "mrr": 0} == pytest.approx(
            {
                "accuracy": reference.accuracy_score(truth, said),
                "loss": reference.log_loss(truth, chance),
                "roc_auc": reference.roc_auc_score(truth, scores),
                "ap": reference.average_precision_score(truth, scores),
                "f1": reference.f1_score(truth, said),
                "hits@1": 0,
                "mrr": 0,
            },
            rel=1e-5,
        )
    groups = TASK.evaluate_groups(model, prepared, "test", [torch.arange(data.num_items)])
    assert groups == [found["test"]]


@BOTH
def test_where_none_are_given_they_are_drawn_as_ever(plain: LinkGraph) -> None:
    data = with_negatives(plain, splits=())  # the dataset may have negatives; this client has none
    alone, model = links_alone(data), model_for(plain)
    steps = [next(TASK.batches(TASK.prepare(each), FullBatch(), torch_generator(0, "f"))) for each in (data, alone)]
    assert torch.equal(steps[0].pairs, steps[1].pairs) and torch.equal(steps[0].target, steps[1].target)
    splits = ("train", "val", "test")
    assert TASK.evaluate(model, TASK.prepare(data), splits) == TASK.evaluate(model, TASK.prepare(alone), splits)
    some = with_negatives(plain, splits=("test",))  # given in one split, drawn in the others
    found = TASK.evaluate(model, TASK.prepare(some), ("val",)), TASK.evaluate(model, TASK.prepare(alone), ("val",))
    assert found[0] == found[1] and TASK.count(some, "test") > TASK.count(alone, "test")


def test_a_client_with_negatives_alone_learns_from_them_and_has_no_area() -> None:
    data = with_negatives(toy_facts())
    assert data.linked is not None
    (part,) = data.divide([(data.linked == 0).nonzero().flatten()])
    prepared, model = TASK.prepare(part), model_for(part)
    step = next(TASK.batches(prepared, FullBatch(), torch_generator(0, "f")))
    assert step.target.sum() == 0 and prepared.graph.num_edges == 0
    assert TASK.evaluate(model, prepared, ("test",))[0]["test"].keys() <= {"accuracy", "loss", "f1"}
    TASK.require_model(model, part)
    assert "0 links, " in TASK.holds(part) and "negatives" in TASK.holds(part)


def test_a_complete_graph_with_negatives_of_its_own_is_learned_from() -> None:
    links = torch.tensor([[0, 0, 1, 1], [2, 3, 2, 3]])
    side = {"side": torch.tensor([0, 0, 1, 1])}
    plain = replace(toy_ratings(2, 2, 4), links=links, node_attributes=side, masks={"train": torch.ones(4) > 0})
    assert TASK.count(plain, "train") == 0
    told = replace(plain, linked=torch.tensor([1, 1, 1, 0]), label=torch.tensor([1, 1, 1, 0]), negatives="0")
    assert TASK.count(told, "train") == 4 and "no negatives" not in TASK.holds(told)
    TASK.require_model(model_for(told), told)


def test_a_pair_that_is_no_link_has_no_relation_to_ask_about() -> None:
    with pytest.raises(BadInput, match="by_relation"):
        replace(TASK, by_relation=True).input_dim(with_negatives(toy_facts()))


# ---- folders

NODES = "id,f1\na,1\nb,2\nc,3\nd,4\n"
LINKS = "source,target,label\na,b,1\nb,c,1\nc,d,1\na,d,0\nb,d,0\na,c,\n"


def folder(path: Path, links: str = LINKS) -> Path:
    path.mkdir(exist_ok=True)
    (path / "nodes.csv").write_text(NODES)
    (path / "links.csv").write_text(links)
    return path


def test_a_folder_says_which_label_is_no_link(tmp_path: Path) -> None:
    data = read_link_folder(folder(tmp_path / "a"), negatives="0").data
    assert data.linked is not None and data.linked.tolist() == [1, 1, 1, 0, 0, -1]
    assert data.label.tolist() == [1, 1, 1, 0, 0, -1]
    named = folder(tmp_path / "b", LINKS.replace(",1", ",yes").replace(",0", ",No"))
    for stated in ((), ("yes", "No")):
        found = read_link_folder(named, stated, negatives="no").data
        assert found.linked is not None and found.linked.tolist() == [1, 1, 1, 0, 0, -1]
    plain = read_link_folder(folder(tmp_path / "c", "source,target\na,b\nb,c\n"), negatives="0").data
    assert plain.linked is not None and plain.linked.tolist() == [1, 1] and (plain.label > 0).all()


@pytest.mark.parametrize("negatives", ["off", "2", "-1"])
def test_a_label_that_the_folder_does_not_have_is_refused(tmp_path: Path, negatives: str) -> None:
    with pytest.raises(BadInput, match=f"negatives is {negatives!r}.*known: '0', '1'"):
        read_link_folder(folder(tmp_path / "a"), negatives=negatives)
    with pytest.raises(BadInput, match=f"negatives is {negatives!r}.*known: 'x', 'y'"):
        read_link_folder(folder(tmp_path / "b", LINKS.replace(",1", ",x").replace(",0", ",y")), negatives=negatives)


def test_a_pair_that_is_told_to_be_both_is_refused_by_row(tmp_path: Path) -> None:
    both = folder(tmp_path / "a", LINKS + "d,a,1\nb,a,1\n")
    assert read_link_folder(both, negatives="0").data.num_items == 8, "a link back is another link"
    with pytest.raises(BadInput, match=r"links.csv row 7: says that 'd' and 'a' are linked, row 4 that they are not"):
        read_link_folder(both, undirected=True, negatives="0")


@pytest.mark.parametrize("words", [("0", "1"), ("false", "true"), ("No", "Yes")])
def test_labels_of_yes_and_no_are_never_taken_for_links_in_silence(tmp_path: Path, words: tuple[str, str]) -> None:
    no, yes = words
    path = folder(tmp_path / "a", LINKS.replace(",1", f",{yes}").replace(",0", f",{no}"))
    doubtful = read_link_folder(path).data
    with pytest.raises(BadInput, match=f"dataset.negatives={no}.*dataset.all_links=true"):
        TASK.input_dim(doubtful)
    assert LinkClassification().input_dim(doubtful) == 1 and replace(TASK, by_relation=True).input_dim(doubtful) == 1
    assert TASK.input_dim(read_link_folder(path, negatives=no).data) == 1
    assert TASK.input_dim(read_link_folder(path, all_links=True).data) == 1
    other = folder(tmp_path / "b", LINKS.replace(",1", ",likes").replace(",0", ",hates"))
    assert TASK.input_dim(read_link_folder(other).data) == 1


@pytest.mark.parametrize("named", [True, False])
def test_parts_written_are_read_back_with_their_negatives(tmp_path: Path, named: bool) -> None:
    data = with_negatives(toy_facts())
    data = replace(data, class_names=("0", "1")) if named else data
    write_link_folder(data, tmp_path / "mine")
    read = read_link_folder(tmp_path / "mine", data.class_names, negatives="0").data
    assert torch.equal(read.linked, data.linked) and torch.equal(read.links, data.links)  # type: ignore[arg-type]
    (part,) = data.divide([torch.arange(30, 60)])
    assert torch.equal(part.linked, data.linked[30:60])  # type: ignore[arg-type, index]

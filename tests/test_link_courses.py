"""Whole courses with link tasks: every general algorithm, every runtime in process, the global graph, bad input."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import isthmus as ist
from isthmus.algorithms import ALGORITHMS
from isthmus.config.load import load_course
from isthmus.core.errors import BadInput
from isthmus.core.protocol import Algorithm
from isthmus.data.dividing import PublicSplit, RatioSplit
from isthmus.data.link_graph import LinkGraph
from isthmus.data.splitters import RandomSplitter
from isthmus.data.zoo import Dataset
from isthmus.learn.batching import LinkBatch, NeighborBatch
from isthmus.learn.optimizers import SGD
from isthmus.learn.tasks import LinkClassification, LinkPrediction, Task
from isthmus.models import GCN, HadamardMLPDecoder, ModelSpec
from isthmus.runs.simulation import Scenario, Simulation
from tests.learn.tasks.link_toys import toy_facts, toy_ratings
from tests.quick import by_kind

GENERAL = ("fedavg", "local", "global", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fedprox", "fedopt")))
OTHERS = (
    *("fedrep", "gcfl"),
    *by_kind(("scaffold", "fednova", "moon", "feddyn", "ditto", "pfedme", "apfl", "fedavg_ft", "gcfl_plus")),
)
TASKS: dict[str, Task] = {
    "classification": LinkClassification(metrics=("accuracy", "loss", "hits@1", "mrr")),
    "prediction": LinkPrediction(metrics=("accuracy", "loss", "auc", "mrr")),
    "by relation": LinkPrediction(metrics=("accuracy", "loss", "auc", "mrr"), by_relation=True),
}


def planted() -> LinkGraph:
    """Return links whose class, and whose being there, can be told from the features of their ends."""
    data = toy_facts(40, 400, 2)
    kind = torch.arange(40) % 2
    head, tail = data.links
    tail = (tail // 2) * 2 + kind[head]  # only nodes of one kind are linked
    return replace(
        data, x=torch.eye(2)[kind] + 0.1 * torch.ones(40, 2), links=torch.stack([head, tail]), label=kind[head]
    )


@dataclass(frozen=True)
class Facts(Dataset):
    """The toy facts as a dataset."""

    def load(self, root: Path) -> LinkGraph:
        """Make them."""
        return planted()

    def present(self, root: Path) -> bool:
        """Nothing is needed."""
        return True


def course(algorithm: str | Algorithm[Any] = "fedavg", **changes: Any) -> ist.Course:
    fields: dict[str, Any] = {
        "dataset": Facts(),
        "masks": PublicSplit(),
        "splitter": RandomSplitter(),
        "num_clients": 3,
        "task": LinkClassification(),
        "model": ModelSpec(GCN(hidden=8, dropout=0.3), decoder=HadamardMLPDecoder(hidden=8, dropout=0.2)),
        "algorithm": ALGORITHMS[algorithm]() if isinstance(algorithm, str) else algorithm,
        "rounds": 3,
    }
    return ist.Course(**{**fields, **changes})


def three_clients() -> Scenario:
    """Return some of the planted links, divided among three."""
    [whole] = planted().divide([torch.arange(90)])
    parts = whole.divide([torch.arange(k, 90, 3) for k in range(3)])
    return Scenario(whole, dict(zip("abc", parts, strict=True)))  # type: ignore[arg-type]


@pytest.mark.meet(1)
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("algorithm", GENERAL)
def test_general_algorithms_give_the_same_bits_in_loop_and_strict_and_nearly_the_same_together(
    algorithm: str, task: str
) -> None:
    made, scenario = course(algorithm, task=TASKS[task], rounds=2), three_clients()
    results = {kind: ist.run(replace(made, runtime=kind), scenario=scenario) for kind in ("loop", "strict", "auto")}
    loop = results["loop"]
    assert loop.metrics and all(metrics.keys() == set(TASKS[task].metrics) for metrics in loop.metrics.values())
    strict, together = results["strict"], results["auto"]
    assert strict.metrics == loop.metrics and strict.client_scores == loop.client_scores
    assert all(torch.equal(strict.params[name], loop.params[name]) for name in loop.params)
    for name, tensor in loop.params.items():
        torch.testing.assert_close(together.params[name], tensor, rtol=1e-5, atol=1e-6)
    losses = [[metrics["loss"] for metrics in result.metrics.values()] for result in (together, loop)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert not [note for note in loop.notes if "client" in note]


@pytest.mark.meet(1)
@pytest.mark.parametrize("task", ["classification", "prediction"])
@pytest.mark.parametrize("algorithm", OTHERS)
def test_other_general_algorithms_train_and_give_the_same_bits_in_loop_and_strict(algorithm: str, task: str) -> None:
    scenario = three_clients()
    made = course(algorithm, task=TASKS[task], rounds=2)
    loop, strict = (ist.run(replace(made, runtime=kind), scenario=scenario) for kind in ("loop", "strict"))
    assert loop.metrics == strict.metrics and loop.client_scores == strict.client_scores
    assert all(metrics.keys() == set(TASKS[task].metrics) for metrics in loop.metrics.values())
    start = Simulation(made, scenario).initial.params
    models, others = ({"global": found.params, **found.client_params} for found in (loop, strict))
    for name, model in models.items():
        assert all(torch.equal(tensor, others[name][slot]) for slot, tensor in model.items())
        assert all(not torch.equal(model[slot], start[slot]) for slot in start if slot in model and "weight" in slot)
    assert not [event for event in loop.events if event["event"] == "exchange" and event.get("failures")]


@pytest.mark.meet(1)
@pytest.mark.parametrize("batching", [LinkBatch(16), NeighborBatch(16, (4, 4))])
@pytest.mark.parametrize("task", TASKS)
def test_mini_batches_run_in_loop_and_strict_alike(task: str, batching: Any) -> None:
    first, second = (
        ist.run(course(task=TASKS[task], batching=batching, runtime=kind, rounds=2)) for kind in ("loop", "strict")
    )
    assert first.metrics == second.metrics


@pytest.mark.parametrize("task", TASKS)
def test_what_can_be_learned_is_learned_on_the_global_graph_too(task: str) -> None:
    rounds, lr = (12, 0.5) if task == "classification" else (4, 1.0)
    learning = ALGORITHMS["fedavg"](local_steps=8, optimizer=SGD(lr=lr))  # type: ignore[call-arg]
    model = ModelSpec(GCN(hidden=8, dropout=0.0), decoder=HadamardMLPDecoder(hidden=8))
    found = ist.run(course(learning, task=TASKS[task], model=model, rounds=rounds, evaluate_every=rounds))
    name = "accuracy" if task == "classification" else "auc"
    least = 0.9 if task == "classification" else 0.65
    assert found.metrics["global_model/global_graph"][name] > least
    assert found.metrics["global_model/local_graph"][name] > least


def test_pooled_training_is_scored_on_each_clients_links() -> None:
    found = ist.run(course("global", rounds=1))
    assert len(found.client_scores) == 3 and all("accuracy" in scores for scores in found.client_scores.values())


def test_a_client_without_training_links_is_named_and_has_no_weight() -> None:
    whole = planted()
    parts = whole.divide([torch.arange(200), torch.arange(200, 390), torch.arange(390, 400)])
    empty = parts[2].with_masks({**parts[2].masks, "train": torch.zeros(10, dtype=torch.bool)})
    scenario = Scenario(whole, {"a": parts[0], "b": parts[1], "c": empty})
    found = ist.run(course(rounds=2), scenario=scenario)
    assert [note for note in found.notes if note.startswith("c has no training examples")]
    without = ist.run(course(num_clients=2, rounds=2), scenario=Scenario(whole, {"a": parts[0], "b": parts[1]}))
    assert all(torch.allclose(found.params[name], without.params[name]) for name in found.params)


def test_a_run_folder_can_be_gone_on_with(tmp_path: Path) -> None:
    listed = "tests.test_link_courses:Facts"
    written = tmp_path / "course.yaml"
    written.write_text(
        f"dataset: {{name: '{listed}'}}\nmasks: public\nsplitter: random\nnum_clients: 3\nrounds: 2\n"
        "task: {name: link_classification, metrics: [accuracy, loss, 'hits@1']}\n"
        "model: {gnn: {name: gcn, hidden: 8}, decoder: {name: hadamard_mlp, hidden: 64}}\n"
        "stopping: {metric: 'hits@1'}\n"
    )
    read = load_course(written)
    assert read.model == ModelSpec(GCN(hidden=8), decoder=HadamardMLPDecoder(hidden=64))
    ist.run(read, run_dir=tmp_path / "run")
    longer = ist.resume(tmp_path / "run", overrides=["rounds=4"])
    assert longer.metrics == ist.run(replace(read, rounds=4)).metrics


# ---- bad input


def test_a_model_without_a_link_decoder_is_refused_and_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"the model has no decoder; set model.decoder.name to hadamard_mlp"):
        ist.run(course(model=ModelSpec()), run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_node_task_refuses_a_link_decoder() -> None:
    model = ModelSpec(GCN(hidden=8), decoder=HadamardMLPDecoder())
    with pytest.raises(BadInput, match="HadamardMLP scores pairs of nodes, which only link tasks do"):
        ist.run(ist.Course(model=model, rounds=1))


def test_a_link_task_refuses_a_graph_of_nodes() -> None:
    with pytest.raises(BadInput, match="'cora' consists of nodes, the task 'link_classification' learns from links"):
        ist.run(ist.Course(task=LinkClassification(), model=course().model, rounds=1))


def test_links_that_are_all_held_out_are_refused() -> None:
    with pytest.raises(BadInput, match=r"none of the 400 links .* is a training example"):
        ist.run(course(masks=RatioSplit(train=0.0, val=0.5, test=0.5)))


@pytest.mark.parametrize("algorithm", ["fedavg", "local", "gcfl"])
def test_clients_of_which_none_can_train_are_refused_with_their_reasons(algorithm: str, tmp_path: Path) -> None:
    whole = shops().whole
    user = whole.links[0]
    parts = whole.divide([(user == k).nonzero()[:, 0] for k in range(5)])
    scenario = Scenario(whole, {f"client-{k}": part for k, part in enumerate(parts)})
    words = (
        r"no client can train: client-0 has no negatives \(.*; client-1 .*; client-2 .*; and 2 more; use fewer clients"
    )
    with pytest.raises(BadInput, match=words):
        ist.run(course(algorithm, task=TASKS["prediction"]), scenario=scenario, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# ---- clients without negatives


def shops() -> Scenario:
    """Return users and items, and a client with one user, who has bought all that it knows of."""
    whole = toy_ratings(6, 9, 60)
    user = whole.links[0]
    parts = {
        "a": (user < 3).nonzero().flatten(),
        "b": (user >= 3).nonzero().flatten(),
        "one": (user == 5).nonzero()[:, 0],
    }
    return Scenario(whole, dict(zip(parts, whole.divide(list(parts.values())), strict=True)))  # type: ignore[arg-type]


@pytest.mark.meet(1)
@pytest.mark.parametrize("runtime", ["loop", "strict", "auto"])
@pytest.mark.parametrize("algorithm", ["fedavg", "local", "ditto", "fedavg_ft"])
def test_a_client_without_negatives_is_named_in_a_note_and_the_course_ends_well(algorithm: str, runtime: str) -> None:
    scenario, task = shops(), TASKS["prediction"]
    assert task.holds(scenario.parts["one"]).endswith("0/0/0 train/val/test (no negatives)")
    result = ist.run(course(algorithm, task=task, runtime=runtime), scenario=scenario)
    assert result.num_rounds == 3 and (result.params or result.client_params)
    (note,) = [note for note in result.notes if "has no negatives" in note]
    assert note.startswith("one has no negatives (replacing an end of one of its ")
    assert note.endswith(" links always gives a link): it trains nothing and has no weight in any mean")
    assert result.client_scores["one"] == {}
    assert result.client_scores["a"].keys() == set(task.metrics)
    assert not any(event.get("failures") for event in result.events)


def test_a_client_without_negatives_does_not_change_what_the_others_learn() -> None:
    scenario = shops()
    alone = Scenario(scenario.whole, {name: part for name, part in scenario.parts.items() if name != "one"})
    with_one, without = (ist.run(course(task=TASKS["prediction"]), scenario=each) for each in (scenario, alone))
    assert all(torch.equal(tensor, without.params[name]) for name, tensor in with_one.params.items())


@pytest.mark.parametrize("batching", [LinkBatch(1), NeighborBatch(1, (3, 3))], ids=["links", "neighbours"])
def test_a_batch_of_links_without_negatives_is_no_failure_of_the_client(batching: Any) -> None:
    """The first user has bought all and the first item was bought by all, so their link has no negative of its own."""
    data = toy_ratings(2, 3, 4)
    links, every = torch.tensor([[0, 0, 0, 1], [2, 3, 4, 2]]), torch.ones(4, dtype=torch.bool)
    data = replace(data, links=links, masks={"train": every, "val": torch.arange(4) == 0, "test": torch.arange(4) == 0})
    result = ist.run(
        course(task=TASKS["prediction"], batching=batching, num_clients=1, rounds=5),
        scenario=Scenario(data, {"a": data}),  # type: ignore[arg-type, dict-item]
    )
    assert not any(event.get("failures") for event in result.events)
    assert result.client_scores["a"].keys() == set(TASKS["prediction"].metrics)


def test_data_without_any_negative_is_refused_before_the_start() -> None:
    one = shops().parts["one"]
    with pytest.raises(
        BadInput, match=r"the graph 'toy ratings', of \d+ nodes, is complete: .* needs a graph with gaps"
    ):
        ist.run(course(task=TASKS["prediction"]), scenario=Scenario(one, {"one": one}))

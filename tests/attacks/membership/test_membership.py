"""Membership: a model that learned by heart gives it away, one that learned nothing does not; LiRA by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from torch import Tensor

import isthmus
from isthmus.algorithms import FedAvg, FedGNN
from isthmus.attacks.attack import Case, NothingSeen, Seen
from isthmus.attacks.membership.candidates import Candidates, with_members, without_edges
from isthmus.attacks.membership.lira import Lira, log_ratio, means_of
from isthmus.attacks.membership.loss_threshold import LossThreshold
from isthmus.data.graph import Graph
from isthmus.learn.optimizers import Adam
from isthmus.models import GCN, ModelSpec
from isthmus.privacy import SecureSum
from isthmus.runs.simulation import Scenario, Simulation
from isthmus.testing import toy_course, toy_graph, toy_scenario


def seen_of(case: Case, params: Any, shadows: Any = ()) -> Seen:
    return Seen(case.course, case.clients, {}, params, (), tuple(shadows))


def course(algorithm: Any = None, **changes: Any) -> isthmus.Course:
    return toy_course(algorithm or FedAvg(local_steps=1), **{"num_clients": 3, "rounds": 2, **changes})


def by_heart() -> Case:
    """Return a case in which labels have nothing to do with features, which only a memory can tell apart."""
    draw = torch.Generator().manual_seed(3)
    graph = toy_graph(60, num_features=120, num_links=0)
    graph = replace(
        graph, y=torch.randint(3, (60,), generator=draw), x=torch.randn(60, 120, generator=draw), masks=graph.masks
    )
    parts = {"a": graph.subgraph(torch.arange(30)), "b": graph.subgraph(torch.arange(30, 60))}
    made = course(
        FedAvg(local_steps=20, optimizer=Adam(lr=0.05)),
        num_clients=2,
        rounds=10,
        stopping=isthmus.EarlyStopping(keep="last"),
        model=ModelSpec(gnn=GCN(hidden=32, dropout=0.0)),
    )
    return Case(made, Scenario(graph, parts))


def test_a_model_that_learned_by_heart_gives_everybody_away_and_a_fresh_one_nobody() -> None:
    case, attack = by_heart(), LossThreshold()
    known = attack.known(case)
    truth = attack.truth(case, known)
    trained = isthmus.run(case.course, scenario=case.scenario).params
    fresh = Simulation(case.course, case.scenario).initial.params
    assert attack.scores(attack.guess(seen_of(case, trained), known), truth)["auc"] > 0.95
    assert abs(attack.scores(attack.guess(seen_of(case, fresh), known), truth)["auc"] - 0.5) < 0.12
    guessed = attack.scores(attack.prior(known, case.clients), truth)
    assert guessed == pytest.approx({"auc": 0.5, "tpr@1%": 0.01, "tpr@0.1%": 0.001})


def test_candidates_are_what_somebody_holds_with_a_label_to_train_on_or_to_test_with() -> None:
    scenario = toy_scenario(3)
    part = scenario.parts["client-0"]
    scenario = replace(scenario, parts={"client-0": part, "client-1": scenario.parts["client-1"]})
    known = Candidates.of(Case(course(), scenario))
    held = {node for each in scenario.parts.values() for node in each.node_ids.tolist()}
    whole = scenario.whole
    slow = [
        node
        for node in range(whole.num_nodes)
        if node in held and (whole.masks["train"][node] or whole.masks["test"][node]) and whole.y[node] >= 0
    ]
    assert known.items.tolist() == slow and known.labels.tolist() == whole.y[slow].tolist()
    assert not any(part.masks for part in known.parts.values())


def test_confidence_is_the_logit_of_the_label_in_the_mean_over_who_holds_it() -> None:
    scenario = toy_scenario(3)
    case = Case(course(), scenario)
    simulation = Simulation(case.course, scenario)
    params = {name: 2.0 * tensor for name, tensor in simulation.initial.params.items()}
    known = Candidates.of(case)
    found = known.confidences(params)
    for place, node in enumerate(known.items.tolist()):
        logits = []
        for client, part in scenario.parts.items():
            for row in (part.node_ids == node).nonzero().flatten().tolist():
                p = simulation.clients[client].predict(params).probabilities[row].double()
                label = int(part.y[row])
                rest = sum(float(p[k]) for k in range(len(p)) if k != label)
                logits.append(math.log(float(p[label])) - math.log(rest))
        assert float(found[place]) == pytest.approx(sum(logits) / len(logits), rel=1e-5, abs=1e-6)


def test_drawn_members_are_the_training_items_of_everybody_and_the_rest_stays() -> None:
    scenario = toy_scenario(3)
    case = Case(course(), scenario)
    known = Candidates.of(case)
    made = with_members(scenario, known.items[::3], known.items[[i for i in range(len(known.items)) if i % 3]])
    assert made.whole.mask("train").nonzero().flatten().tolist() == known.items[::3].tolist()
    assert torch.equal(made.whole.mask("val"), scenario.whole.mask("val"))
    for part in made.parts.values():
        for split in ("train", "val", "test"):
            assert torch.equal(part.mask(split), made.whole.mask(split)[part.node_ids])
    assert int(scenario.whole.mask("train").sum()) != len(known.items[::3])  # what was there is untouched


@pytest.mark.parametrize("train", [0.5, 0.34])
def test_shadows_draw_as_many_as_the_course_and_each_item_has_its_turn(train: float) -> None:
    scenario = toy_scenario(2, num_nodes=60)
    items = (scenario.whole.mask("train") | scenario.whole.mask("test")).nonzero().flatten()
    number = round(train * len(items))
    scenario = with_members(scenario, items[:number], items[number:])
    case, attack = Case(course(num_clients=2), scenario), Lira(shadows=12)
    known = attack.known(case)
    made = [attack.shadow(case, known, place) for place in range(12)]
    assert all(int(shadow.drawn.sum()) == number for shadow in made)
    times = torch.stack([shadow.drawn for shadow in made]).sum(dim=0)
    turns = round(len(items) / number)
    assert times.float().mean() == pytest.approx(12 * number / len(items)) and int(times.min()) >= 12 // turns - 4
    for shadow in made:
        inside = shadow.scenario.whole.mask("train")[known.items]
        assert torch.equal(inside, shadow.drawn)
    again = attack.shadow(case, known, 5)
    assert torch.equal(again.drawn, made[5].drawn) and again.course == made[5].course


@pytest.mark.parametrize(("queries", "own"), [(1, 0.0), (1, 1.0), (2, 0.5), (3, 0.3)])
def test_the_ratio_is_of_normal_densities_with_each_items_means(queries: int, own: float) -> None:
    draw = torch.Generator().manual_seed(0)
    sure, inside = torch.randn(9, queries, 6, generator=draw).double(), torch.rand(9, 6, generator=draw) < 0.5
    inside[:2], inside[2:4] = True, False
    found = torch.randn(queries, 6, generator=draw).double()
    means = np.zeros((2, queries, 6))
    left = np.zeros((9, queries, 6))
    for item in range(6):
        for query in range(queries):
            for side in (0, 1):
                chosen = [s for s in range(9) if bool(inside[s, item]) == bool(side)]
                values = [float(sure[s, query, item]) for s in chosen]
                means[side, query, item] = sum(values) / len(values)
                for s, value in zip(chosen, values, strict=True):
                    left[s, query, item] = value - means[side, query, item]
    every = (left**2).sum(axis=(0, 2)) / (7 * 6)  # nine answers less two means, of six items
    variance = own * (left**2).sum(axis=0) / 7 + (1 - own) * every[:, None]
    scaled = left / np.sqrt(variance)
    joined = scaled.transpose(1, 0, 2).reshape(queries, -1)
    correlation = np.corrcoef(joined) if queries > 1 else np.ones((1, 1))
    both = log_ratio(found, sure, inside, own)
    for item in range(6):
        covariance = correlation * np.sqrt(np.outer(variance[:, item], variance[:, item]))
        density = [multivariate_normal(means[side, :, item], covariance) for side in (0, 1)]
        point = found[:, item].numpy()
        assert float(both[item]) == pytest.approx(
            density[1].logpdf(point) - density[0].logpdf(point), rel=2e-2, abs=2e-2
        )


def test_an_item_that_no_shadow_has_is_taken_for_like_the_others() -> None:
    sure, inside = torch.tensor([[[1.0, 5.0]], [[3.0, 7.0]]]), torch.tensor([[True, False], [True, False]])
    assert means_of(sure, inside).tolist() == [[2.0, 2.0]]
    assert not log_ratio(sure[0], sure, inside, 1.0).isnan().any()


def test_shadows_start_as_the_course_does_unless_something_protects_is_drawn_from_its_seed() -> None:
    case, attack = Case(course(seed=5), toy_scenario(3)), Lira(shadows=4)
    assert {attack.shadow(case, attack.known(case), number).course.seed for number in range(4)} == {5}
    for made in (course(seed=5, guards=(SecureSum(),)), course(FedGNN(), seed=5)):
        case = Case(made, toy_scenario(3))
        assert len({5, *(attack.shadow(case, Candidates.of(case), number).course.seed for number in range(4))}) == 5


def test_features_alone_are_asked_about_where_items_are_nodes_or_graphs() -> None:
    case = Case(course(), toy_scenario(3))
    params = Simulation(case.course, case.scenario).initial.params
    known = Candidates.of(case)
    assert Lira()._asked(known, params).shape == (2, len(known.items))
    assert torch.equal(Lira(alone=False)._asked(known, params)[0], Lira()._asked(known, params)[0])
    bare = replace(known, parts={client: without_edges(part) for client, part in known.parts.items()})
    assert torch.equal(bare.confidences(params), known.confidences(params, edges=False))
    assert not torch.equal(known.confidences(params), known.confidences(params, edges=False))


def test_shadow_federations_find_who_was_learned_by_heart() -> None:
    case, attack = by_heart(), Lira(shadows=8)
    known = attack.known(case)
    gists = []
    for number in range(8):
        shadow = attack.shadow(case, known, number)
        gists.append(attack.gist(shadow, known, isthmus.run(shadow.course, scenario=shadow.scenario)))
    final = isthmus.run(case.course, scenario=case.scenario).params
    found = attack.scores(attack.guess(seen_of(case, final, gists), known), attack.truth(case, known))
    assert found["auc"] > 0.97


@dataclass(frozen=True)
class Told:
    """Stands for candidates of whom a model says what it is told to say."""

    sure: Tensor
    parts: Any = field(default_factory=lambda: {"client": None})

    def confidences(self, params: Any, edges: bool = True) -> Tensor:
        return self.sure


@pytest.mark.parametrize(("gain", "low", "high"), [(0.0, 0.47, 0.53), (1.0, 0.70, 0.82), (6.0, 0.99, 1.0)])
def test_the_ratio_finds_as_much_as_training_changes(gain: float, low: float, high: float) -> None:
    # Items are as hard as they are, which a threshold cannot tell from not having been trained on.
    draw = torch.Generator().manual_seed(1)
    hard, truth = 5.0 * torch.randn(3000, generator=draw), torch.rand(3000, generator=draw) < 0.5
    gists = []
    for _ in range(16):
        inside = torch.rand(3000, generator=draw) < 0.5
        gists.append(
            {"inside": inside, "sure": (hard + gain * inside + torch.randn(3000, generator=draw)).unsqueeze(0)}
        )
    sure = hard + gain * truth + torch.randn(3000, generator=draw)
    case, told = Case(course(), toy_scenario(3)), Told(sure)
    seen = seen_of(case, {"w": torch.ones(1)}, gists)
    assert low <= Lira().scores(Lira().guess(seen, told), truth)["auc"] <= high  # type: ignore[arg-type]
    by_threshold = LossThreshold().scores(LossThreshold().guess(seen, told), truth)["auc"]  # type: ignore[arg-type]
    assert by_threshold < (0.6 if gain < 6.0 else 0.9)


def test_without_a_shared_model_there_is_nothing_to_ask() -> None:
    case = Case(course(), toy_scenario(3))
    for attack in (LossThreshold(), Lira()):
        with pytest.raises(NothingSeen, match="share no whole model"):
            attack.guess(seen_of(case, {}, [{"sure": torch.zeros(1), "inside": torch.ones(1)}]), attack.known(case))


def test_few_shadows_are_refused() -> None:
    with pytest.raises(ValueError, match="shadows is 3; it must be at least 4"):
        Lira(shadows=3)


def test_what_a_candidate_set_holds_is_a_graphs() -> None:
    assert isinstance(next(iter(Candidates.of(Case(course(), toy_scenario(3))).parts.values())), Graph)

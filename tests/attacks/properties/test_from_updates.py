"""Properties: one that updates show is found, one that they cannot show is not; the middle is that of other draws."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import isthmus
from isthmus.algorithms import FedAvg
from isthmus.algorithms.fedavg import ModelUpdate, TrainModel
from isthmus.attacks.attack import Case, Message, NothingSeen, Seen
from isthmus.attacks.listening import heard
from isthmus.attacks.measures import auc
from isthmus.attacks.properties import from_updates
from isthmus.attacks.properties.from_updates import PROPERTIES, Divisions, PropertyInference, summary
from isthmus.core.protocol import Position
from isthmus.data.splitters.random import RandomSplitter
from isthmus.runs.simulation import Scenario
from isthmus.testing import toy_course, toy_graph, toy_scenario


def case_of(num_clients: int = 4) -> Case:
    graph = toy_graph(80, homophily=0.5)
    course = toy_course(FedAvg(), num_clients=num_clients, splitter=RandomSplitter(), rounds=2, runtime="auto")
    parts = {f"client-{i}": graph.subgraph(torch.arange(80)[i::num_clients]) for i in range(num_clients)}
    return Case(course, Scenario(graph, parts))


def told(client: str, tensor: torch.Tensor) -> Message:
    """Return an update that is a tensor."""
    sent = {"w": torch.zeros_like(tensor)}
    return Message(Position(0, 1, 0), {client: TrainModel(sent)}, ModelUpdate({"w": tensor}, 1.0))


def planted(says: float) -> tuple[Seen, Divisions, torch.Tensor]:
    """Return clients whose updates say a property that has nothing to do with anything else, as loudly as told."""
    draw = torch.Generator().manual_seed(0)
    values = torch.randn(200, generator=draw).double()
    rows = torch.randn(200, 6, generator=draw).double()
    rows[:, 2] += says * (values > values.median())
    mine, yes = torch.randn(60, 6, generator=draw), torch.rand(60, generator=draw) < 0.5
    mine[:, 2] += says * yes
    clients = tuple(f"client-{i}" for i in range(60))
    seen = Seen(isthmus.Course(), clients, {}, {}, tuple(told(c, row) for c, row in zip(clients, mine, strict=True)))
    return seen.beside([{"rows": rows, "values": values}]), Divisions((), values), yes


@pytest.mark.parametrize("classifier", ["logistic", "forest"])
def test_a_planted_property_is_found_and_where_updates_say_nothing_none_is(classifier: str) -> None:
    attack = PropertyInference(classifier=classifier)
    for says, low, high in ((5.0, 0.95, 1.0), (0.0, 0.3, 0.7)):
        seen, known, yes = planted(says)
        assert low <= attack.scores(attack.guess(seen, known), yes)["auc"] <= high


def test_a_property_that_training_shows_is_found_in_a_course() -> None:
    case, attack = case_of(), PropertyInference(which="minority", shadows=12)
    known = attack.known(case)
    gists = [attack.gist(attack.shadow(case, known, n), known, None) for n in range(12)]  # type: ignore[arg-type]
    seen = heard(attack, case).beside(gists)
    rows, values = torch.cat([g["rows"] for g in gists]), torch.cat([g["values"] for g in gists])
    assert len(rows) == len(values) == 48 and torch.equal(values, known.values)
    inner = [replace(seen, shadows=tuple(g for i, g in enumerate(gists) if i != n)) for n in range(12)]
    found, right = [], []
    for n, each in enumerate(inner):  # each shadow is guessed by the others
        model = from_updates.CLASSIFIERS["logistic"]()
        train = torch.cat([g["rows"] for g in each.shadows]), torch.cat([g["values"] for g in each.shadows])
        model.fit(train[0].numpy(), (train[1] > known.middle).numpy())
        found += model.predict_proba(gists[n]["rows"].numpy())[:, 1].tolist()
        right += (gists[n]["values"] > known.middle).tolist()
    found_auc = auc(torch.tensor(found), torch.tensor(right))  # of 48 clients
    assert found_auc > 0.65
    assert attack.guess(seen, known).shape == (4,)


def test_divisions_are_others_than_the_course_has_and_repeat() -> None:
    case, attack = case_of(), PropertyInference(shadows=3)
    first, again = attack.known(case), attack.known(case)
    assert torch.equal(first.values, again.values)
    whose = [tuple(map(tuple, (p.node_ids.tolist() for p in s.parts.values()))) for s in first.shadows]
    mine = tuple(tuple(part.node_ids.tolist()) for part in case.scenario.parts.values())
    assert len({*whose, mine}) == 4
    made = attack.shadow(case, first, 1)
    assert made.scenario is first.shadows[1] and made.course.rounds == 2 and made.course.seed == case.course.seed


def test_properties_are_what_they_are_called() -> None:
    graph = toy_graph(30, num_classes=3)
    joined = graph.edge_index.t().tolist()
    labels = graph.y.tolist()
    assert PROPERTIES["homophily"](graph, graph) == pytest.approx(
        sum(labels[a] == labels[b] for a, b in joined) / len(joined)
    )
    assert PROPERTIES["degree"](graph, graph) == pytest.approx(len(joined) / 30)
    sparse = toy_graph(30, num_features=40, sparse=True)
    assert PROPERTIES["words"](sparse, sparse) == pytest.approx(float((sparse.x.to_dense() != 0).sum()) / 30)
    rarest = min(range(3), key=labels.count)
    assert PROPERTIES["minority"](graph, graph) == pytest.approx(labels.count(rarest) / 30)
    part = graph.subgraph((graph.y == rarest).nonzero().flatten())
    assert PROPERTIES["minority"](part, graph) == 1.0


def test_who_says_the_same_of_all_is_right_half_of_the_time() -> None:
    attack, truth = PropertyInference(), torch.tensor([True, True, False])
    known = Divisions((), torch.tensor([1.0, 2.0]))
    assert attack.scores(attack.prior(known, ["a", "b", "c"]), truth) == {"accuracy": 0.5, "auc": 0.5}
    assert attack.scores(torch.tensor([0.9, 0.2, 0.1]), truth) == {"accuracy": pytest.approx(2 / 3), "auc": 1.0}


def test_rows_columns_and_vectors_are_what_is_told_of_an_update() -> None:
    matrix = torch.tensor([[3.0, 0.0], [4.0, 1.0]])
    seen = Seen(isthmus.Course(), ("a",), {}, {}, (told("a", matrix),))
    found = summary(seen, "a")
    assert found is not None
    assert found.tolist() == pytest.approx([3.0, 17**0.5, 5.0, 1.0, 3.0, 5.0])
    assert summary(seen, "b") is None


def test_what_cannot_be_is_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="which is 'homofily'"):
        PropertyInference(which="homofily")
    with pytest.raises(ValueError, match="shadows is 1"):
        PropertyInference(shadows=1)
    case = Case(toy_course(FedAvg()), toy_scenario(3))
    assert PropertyInference().problem(case.course) == ""
    with pytest.raises(NothingSeen, match="held back"):
        PropertyInference().guess(Seen(case.course, case.clients, {}, {}, ()), Divisions((), torch.ones(1)))

"""Links from the last model, and by influence: obvious links are found, and what cannot be seen is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from isthmus.algorithms import FedAvg
from isthmus.attacks.attack import Case, NothingSeen, Seen
from isthmus.attacks.links.from_model import LinksFromModel, Nodes
from isthmus.attacks.links.influence import LinkInfluence
from isthmus.models import GCN, MLP, ModelSpec
from isthmus.runs.simulation import Scenario, Simulation
from isthmus.testing import toy_course, toy_graph, toy_scenario


def triangles(model: ModelSpec) -> tuple[Case, Seen]:
    """Return twelve nodes in four triangles, and a client that has a model of them."""
    source, target = np.nonzero(np.kron(np.eye(4), 1 - np.eye(3)))
    graph = replace(toy_graph(12, num_features=5), edge_index=torch.tensor(np.stack([source, target])))
    case = Case(toy_course(FedAvg(), num_clients=1, model=model), Scenario(graph, {"a": graph}))
    params = Simulation(case.course, case.scenario).initial.params
    return case, Seen(case.course, case.clients, {}, {n: 3.0 * t for n, t in params.items()}, ())


def auc_of(attack: LinksFromModel, case: Case, seen: Seen) -> float:
    known = attack.known(case)
    return attack.scores(attack.guess(seen, known), attack.truth(case, known))["auc"]


def test_who_changes_features_finds_every_link_of_a_model_that_reads_them_and_none_of_another() -> None:
    assert auc_of(LinkInfluence(), *triangles(ModelSpec(gnn=GCN(hidden=8, dropout=0.0)))) == 1.0
    case, seen = triangles(ModelSpec(gnn=MLP(hidden=8, dropout=0.0)))
    attack = LinkInfluence()
    found = attack.guess(seen, attack.known(case))
    assert float(found.abs().max()) < 1e-3 * float(attack.guess(*_asked()).max())


def _asked() -> tuple[Seen, Nodes]:
    case, seen = triangles(ModelSpec(gnn=GCN(hidden=8, dropout=0.0)))
    return seen, LinkInfluence().known(case)


def test_influence_is_the_slope_of_what_is_said() -> None:
    case, seen = triangles(ModelSpec(gnn=GCN(hidden=8, dropout=0.0)))
    known = LinkInfluence().known(case)
    coarse, fine = (LinkInfluence(delta=delta).guess(seen, known) for delta in (0.02, 0.01))
    connected = LinkInfluence().truth(case, known)
    assert torch.allclose(coarse[connected], fine[connected], rtol=0.1)


def test_classes_tell_links_where_features_do_not_and_only_the_model_knows_them() -> None:
    # Two groups of nodes; only the first feature says which, among many that say nothing.
    draw = torch.Generator().manual_seed(0)
    group = torch.arange(40) % 2
    x = torch.randn(40, 60, generator=draw)
    x[:, 0] = (2 * group - 1).float()
    pairs = [(a, b) for a in range(40) for b in range(40) if a != b and a % 2 == b % 2 and (a + b) % 6 == 0]
    graph = replace(toy_graph(40, num_features=60), x=x, y=group, num_classes=2, edge_index=torch.tensor(pairs).t())
    model = ModelSpec(gnn=MLP(hidden=8, layers=1, dropout=0.0))
    case = Case(toy_course(FedAvg(), num_clients=1, model=model), Scenario(graph, {"a": graph}))
    params = {n: torch.zeros_like(t) for n, t in Simulation(case.course, case.scenario).initial.params.items()}
    name = next(n for n, t in params.items() if t.ndim == 2)
    matrix = params[name] if params[name].shape[0] == 2 else params[name].t()
    matrix[0, 0], matrix[1, 0] = 4.0, -4.0
    attack = LinksFromModel()
    known = attack.known(case)
    truth = attack.truth(case, known)
    knowing = attack.scores(attack.guess(Seen(case.course, case.clients, {}, params, ()), known), truth)["auc"]
    nothing = {n: torch.zeros_like(t) for n, t in params.items()}
    blank = attack.guess(Seen(case.course, case.clients, {}, nothing, ()), known)
    before = attack.scores(attack.prior(known, ["a"]), truth)["auc"]
    assert knowing > before + 0.05
    assert attack.scores(blank, truth)["auc"] == pytest.approx(before)


def test_nothing_that_is_known_has_an_edge_a_label_or_a_mask() -> None:
    case = Case(toy_course(FedAvg()), toy_scenario(3))
    for part in LinksFromModel().known(case).parts.values():
        assert part.num_edges == 0 and not part.masks and set(part.y.tolist()) == {-1}


def test_without_a_model_or_without_a_service_nothing_is_seen() -> None:
    case, seen = triangles(ModelSpec(gnn=GCN(hidden=8)))
    with pytest.raises(NothingSeen, match="no whole model"):
        LinksFromModel().guess(replace(seen, final={}), LinksFromModel().known(case))
    with pytest.raises(NothingSeen, match="nobody answers"):
        LinkInfluence().guess(seen, LinksFromModel().known(case))

"""Malicious attacks in an audit: beside the clean course, marked, resumed, and passive ones left as they are."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import isthmus
from isthmus.algorithms import FedAvg
from isthmus.attacks import DeadModel, LossThreshold, Vocabulary
from isthmus.attacks.attack import Case
from isthmus.attacks.audit.results import write_results
from isthmus.attacks.audit.running import carry_out
from isthmus.attacks.audit.spec import Audit, told
from isthmus.attacks.audit.table import attack_table, findings, in_words
from isthmus.attacks.poisoning import LabelFlip, Poisoning, RandomUpdate, SubgraphTrigger, Trigger, run_poisoned
from isthmus.cli import app
from isthmus.core.errors import BadInput
from isthmus.core.folding import Median
from isthmus.learn.optimizers import SGD
from isthmus.models import GCN, ModelSpec
from isthmus.privacy import NormBound, RobustFold, SaneModel
from isthmus.runs.simulation import load_scenario


def course(**changes: Any) -> isthmus.Course:
    words = {
        "num_clients": 3,
        "rounds": 3,
        "evaluate_every": 3,
        "model": ModelSpec(gnn=GCN(hidden=4)),
        "algorithm": FedAvg(local_steps=1, optimizer=SGD(lr=0.1)),
    }
    return isthmus.Course(**{**words, **changes})  # type: ignore[arg-type]


ATTACKS = (Trigger(malicious=1), LabelFlip(("client-1",)), DeadModel(), Vocabulary())


@pytest.fixture(scope="module")
def carried(tmp_path_factory: pytest.TempPathFactory) -> Any:
    lines = ((), (RobustFold(Median()),), (SaneModel(),))
    return carry_out(Audit(course(), ATTACKS, lines, (0, 1)), tmp_path_factory.mktemp("audits") / "one")


def row_of(carried: Any, attack: str, guards: str, seed: int = 0) -> Any:
    return next(r for r in carried.rows if (r.get("attack"), r["guards"], r["seed"]) == (attack, guards, seed))


def test_what_became_of_the_course_stands_beside_the_course_without_malicious_clients(
    carried: Any,
) -> None:
    row = row_of(carried, "trigger(malicious=1)", "none")
    made = replace(course(), seed=0)
    scenario = load_scenario(made, Path("."))
    clean = isthmus.run(made, scenario=scenario)
    case = Case(made, scenario, clean)
    (trigger,) = Trigger(malicious=1).tampering(case)
    assert isinstance(trigger, Poisoning)
    assert row["prior"] == trigger.scored(clean, case)
    assert row["scores"] == trigger.scored(run_poisoned(made, trigger, scenario=scenario), case)
    assert row["prior"]["clean accuracy"] == pytest.approx(clean.score())
    assert row["position"] == "malicious client" and row["marks"] == [f"poisoned: {trigger!r}"]


def test_a_guess_of_a_malicious_server_is_of_its_own_course_and_passive_attacks_see_the_clean_one(
    carried: Any, tmp_path: Path
) -> None:
    assert row_of(carried, "dead_model", "none")["scores"]["distance"] < 1e-5
    assert row_of(carried, "dead_model", "none")["marks"][0].startswith("models crafted by the server: DeadServer(")
    alone = carry_out(Audit(course(), (Vocabulary(),), ((),), (0,)), tmp_path)
    one, other = (row_of(each, "vocabulary", "none") for each in (alone, carried))
    assert one["scores"] == other["scores"] and "marks" not in other
    for what in ("score", "bytes"):
        rows = [
            next(r for r in each.rows if r["what"] == "course" and r["guards"] == "none") for each in (alone, carried)
        ]
        assert rows[0][what] == rows[1][what]


def test_where_clients_refuse_what_is_crafted_there_is_the_prior_and_the_reason(carried: Any) -> None:
    row = row_of(carried, "dead_model", "sane_model")
    assert row["scores"] == row["prior"]
    assert "refused" in row["reason"] and "units of gnn.layers.0.weight are dead" in row["reason"]
    assert (
        row_of(carried, "trigger(malicious=1)", "sane_model")["scores"]
        == row_of(carried, "trigger(malicious=1)", "none")["scores"]
    )


def test_tables_words_and_the_page_have_them(carried: Any, tmp_path: Path) -> None:
    found = list(findings(carried))
    table = attack_table(found).markdown()
    assert "| trigger(malicious=1) " in table and "clean accuracy 0." in table and "success 0." in table
    words = "\n".join(in_words(carried, found))
    assert "trigger(malicious=1) by malicious clients changes" in words and "without them" in words
    files = {path.name: path.read_text() for path in write_results(carried, tmp_path)}
    facts = json.loads(files["findings.json"])
    assert {each["position"] for each in facts["findings"]} == {
        "malicious client",
        "malicious server",
        "curious server",
    }
    assert "trigger(malicious=1)" in files["audit.html"] and "trigger(malicious=1)" in files["audit.md"]


def test_it_goes_on_where_it_was_stopped_with_the_same_rows(carried: Any, tmp_path: Path) -> None:
    made = Audit(course(), (Trigger(malicious=1), LabelFlip(("client-1",))), ((),), (0,))
    whole = carry_out(made, tmp_path)
    text = (tmp_path / "rows.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "rows.jsonl").write_text("".join(text[:2]))  # the course and one attack
    again = carry_out(made, tmp_path)
    assert again.rows == whole.rows
    more = carry_out(replace(made, attacks=(*made.attacks, Trigger(malicious=2))), tmp_path)
    assert more.rows[: len(whole.rows)] == whole.rows and len(more.rows) == len(whole.rows) + 1


def test_a_course_that_was_brought_down_has_no_score_and_the_reason(tmp_path: Path) -> None:
    wrong = RandomUpdate(("client-0", "client-1"), scale=1e6)
    made = course(min_replies=3)
    found = carry_out(Audit(made, (wrong,), ((NormBound(largest=10.0),),), (0,)), tmp_path)
    row = found.rows[1]
    assert all(math.isnan(value) for value in row["scores"].values()) and row["prior"]["clean accuracy"] > 0.0
    assert row["reason"].startswith("the course ended: ") and "the bound is 10" in row["reason"]
    write_results(found, tmp_path)
    assert "left no model to be scored" in (tmp_path / "audit.md").read_text()


@dataclass(frozen=True)
class Zeros(Poisoning):
    """Their features are zero."""

    def of_data(self, scenario: Any) -> Any:
        part = scenario.parts[self.clients[0]]
        x = torch.zeros(part.x.shape).to_sparse_csr()
        return replace(scenario, parts={**scenario.parts, self.clients[0]: replace(part, x=x)})


def test_ones_own_by_object_and_by_path(tmp_path: Path) -> None:
    found = carry_out(Audit(course(), (Zeros(malicious=1),), ((),), (0,)), tmp_path / "a")
    assert set(found.rows[1]["scores"]) == {"success", "clean accuracy"}
    words = ["audit", "--attacks", f"{{name: '{__name__}:Zeros', malicious: 1}}", "--seeds", "1", "rounds=1"]
    result = CliRunner().invoke(app, [*words, "num_clients=3", "model.gnn.hidden=4", "--out", str(tmp_path / "b")])
    assert result.exit_code == 0, result.output


def test_the_command_takes_them_by_name_and_lists_them(tmp_path: Path) -> None:
    words = [
        "audit",
        "--attacks",
        "{name: trigger, clients: [client-0]}",
        "--attacks",
        "{name: sign_flip, malicious: 1}",
    ]
    words += ["--seeds", "1", "--guards", "sane_model", "--out", str(tmp_path / "a"), "--json"]
    result = CliRunner().invoke(app, [*words, "rounds=1", "num_clients=3", "model.gnn.hidden=4"])
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert {each["attack"] for each in facts["findings"]} == {"trigger", "sign_flip(malicious=1)"}
    listed = CliRunner().invoke(app, ["list", "attacks", "--json"])
    assert {"trigger", "sign_flip", "subgraph_trigger", "read_rows", "lira"} <= set(
        json.loads(listed.stdout)["attacks"]
    )


@pytest.mark.parametrize(
    ("attack", "told_"),
    [
        ("{name: trigger, clients: [client-7]}", "Trigger.clients has 'client-7'; known: client-0, client-1, client-2"),
        ("{name: trigger, malicious: 3}", "Trigger.malicious is 3 of 3 clients"),
        ("{name: trigger, columns: [1433]}", "Trigger.columns has 1433, and 'cora' has 1433 features"),
        ("{name: trigger, colums: [1]}", "columns"),
        ("{name: subgraph_trigger, how: replace}", "for nodes set how=attach"),
    ],
)
def test_what_cannot_be_is_refused_by_name(attack: str, told_: str, tmp_path: Path) -> None:
    words = ["audit", "--attacks", attack, "--seeds", "1", "--out", str(tmp_path / "x"), "rounds=1", "num_clients=3"]
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, BadInput) and told_.lower() in str(result.exception).lower()


def test_who_only_listens_does_nothing_to_a_course_and_parts_are_told_by_their_short_names() -> None:
    assert LossThreshold().tampering(None) == ()  # type: ignore[arg-type]
    assert told(SubgraphTrigger(malicious=2)) == "subgraph_trigger(malicious=2)"

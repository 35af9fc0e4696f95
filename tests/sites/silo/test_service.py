"""What a silo says to proposals, good and bad."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import isthmus as ist
from isthmus.config.load import course_to_dict, course_to_yaml
from isthmus.core.codec import decode, encode, pack
from isthmus.core.errors import BadInput, BadMessage
from isthmus.core.protocol import Holdings, Position
from isthmus.runs.simulation import Scenario
from isthmus.runtime.envelope import Answer, Envelope
from isthmus.sites.courses.agreement import agree
from isthmus.sites.courses.hub import checked_terms
from isthmus.sites.courses.messages import NOT_AGREED, AskColumns, Finish, Proposal, Receipt, Terms, Verdict
from isthmus.sites.silo import identities
from isthmus.sites.silo.policy import Policy, load_policy
from isthmus.sites.silo.service import SiloService
from tests.sites.in_process import CLASSES, SECRET, FakeHub, fake_hub, scenario, site_course

ID = "0123456789abcdef"


def silo(tmp_path: Path, policy: Policy | None = None) -> SiloService:
    return fake_hub(tmp_path, {"client-0": policy or Policy()}).silos["client-0"]


def proposal(**changes: Any) -> Proposal:
    fields: dict[str, Any] = {
        "course_id": ID,
        "course": course_to_yaml(site_course()),
        "version": ist.__version__,
        "sites": ("client-0", "client-1", "client-2"),
    }
    return Proposal(**{**fields, **changes})


def terms(service: SiloService, offered: Proposal) -> Terms:
    return decode(service.handle("propose", encode(offered)), Terms)


def with_key(path: str, value: Any) -> str:
    raw = course_to_dict(site_course())
    place = raw
    for key in path.split(".")[:-1]:
        place = place[key]
    place[path.split(".")[-1]] = value
    return yaml.safe_dump(raw)


def test_a_silo_that_agrees_states_its_terms(tmp_path: Path) -> None:
    found = terms(silo(tmp_path), proposal())
    assert (found.refusal, found.input_dim, found.class_names) == ("", 6, CLASSES)
    assert "nodes" in found.holds


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"version": "9.9"}, "the server runs isthmus 9.9"),
        ({"course_id": "../../etc"}, "cannot name a course"),
        ({"course": "{"}, "not YAML"),
        ({"course": "[1, 2]"}, "expected keys and values"),
        ({"course": with_key("algorithm.name", "os:system")}, "import paths are not allowed here"),
        ({"course": with_key("algorithm.name", "fedavgg")}, "Did you mean 'fedavg'?"),
        (
            {"course": with_key("dataset.name", "cora").replace("path: ''", "").replace("undirected: true", "")},
            "dataset",
        ),
        ({"course": with_key("batching.name", "mini")}, "tasks on nodes take 'full' or 'neighbor'"),
        (
            {"course": with_key("client_settings", {"client-0": {"batching.name": "links"}})},
            "client_settings.client-0: batching.name is 'links'; tasks on nodes take 'full' or 'neighbor'",
        ),
        ({"course": with_key("model.gnn", {"name": "gin", "edge_dim": 3})}, "set model.gnn.edge_dim=0"),
        ({"course": "rounds: 2026-13-45"}, "rounds is '2026-13-45', expected a whole number"),
        ({"course": "[" * 5000}, "not YAML"),
        ({"course": "a: &x [1]\nb: *x"}, "aliases"),
        ({"course": "#" * 100_000}, "the limit is 65536"),
        ({"course": with_key("threads", 1_000_000)}, "threads is 1000000"),
        ({"course": "!!python/object/apply:os.system [ls]"}, "not YAML"),
        ({"course": course_to_yaml(site_course(ist.Pooled()))}, "whole graph in one place"),
    ],
)
def test_a_silo_refuses_what_it_cannot_or_must_not_run(changes: dict[str, Any], part: str, tmp_path: Path) -> None:
    found = terms(silo(tmp_path), proposal(**changes))
    assert part in found.refusal
    assert found.input_dim == 0 and found.holds == ""  # a refusal reveals nothing of the data


@pytest.mark.parametrize(
    ("policy", "course", "part"),
    [
        (Policy(algorithms=("fedopt",)), site_course(), "allows the algorithms fedopt, not fedavg"),
        (Policy(min_sites=4), site_course(), "4 sites at least; this course has 3"),
        (
            Policy(algorithms=("fedavg",), min_sites=3, only_folded=True, min_examples=1),  # toy graphs are small
            site_course(min_replies=3),
            "",
        ),
        (Policy(min_sites=3), site_course(min_replies=2), "goes on with min_replies=2"),
        (Policy(only_folded=True, min_examples=1), site_course(ist.Local()), ""),
    ],
)
def test_a_policy_decides(policy: Policy, course: ist.Course, part: str, tmp_path: Path) -> None:
    found = terms(silo(tmp_path, policy), proposal(course=course_to_yaml(course))).refusal
    assert part in found if part else not found


def test_a_message_above_the_policy_s_limit_is_refused(tmp_path: Path) -> None:
    service = silo(tmp_path, Policy(max_message_bytes=500))
    assert "above this silo's limit of 500" in terms(service, proposal()).refusal
    answer: Answer = decode(service.handle("exchange", b"x" * 501), Answer)
    assert answer.failure is not None and "limit" in answer.failure.reason


def test_an_exchange_before_any_agreement_and_an_unknown_kind_are_refused(tmp_path: Path) -> None:
    service = silo(tmp_path)
    assert service.handle("exchange", b"anything") == NOT_AGREED
    for kind in ("finish", "format the disk"):
        receipt: Receipt = decode(service.handle(kind, b"anything"), Receipt)
        assert receipt.problem
    unknown: Receipt = decode(service.handle("finish", encode(Finish(ID, {}, ""))), Receipt)
    assert "not agreed" in unknown.problem


def test_a_broken_graph_folder_is_a_refusal_that_says_what_is_wrong(tmp_path: Path) -> None:
    service = silo(tmp_path)
    (service.data / "edges.parquet").unlink()
    assert "edges" in terms(service, proposal()).refusal


def test_a_policy_file_is_read_and_its_mistakes_are_named(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("algorithms: [fedavg]\nmin_sites: 3\n")
    assert load_policy(path) == Policy(algorithms=("fedavg",), min_sites=3)
    assert load_policy(None) == Policy()
    path.write_text("min_site: 3\n")
    with pytest.raises(BadInput, match="Did you mean 'min_sites'"):
        load_policy(path)
    path.write_text("min_sites: 0\n")
    with pytest.raises(BadInput, match="must be positive"):
        load_policy(path)


GOOD = Terms("", "1.0", 5, 2, ("a", "b"), "10 nodes")


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        (replace(GOOD, version="2.0"), "it runs isthmus 2.0, the server runs 1.0"),
        (replace(GOOD, input_dim=6), "its nodes have 6 features, the others' have 5"),
        (replace(GOOD, output_dim=3), "its labels ask for a model with 3 outputs, the others' for one with 2; state"),
        (replace(GOOD, class_names=("a", "c")), "it has the class 'c', the others do not; it lacks the class 'b'"),
        (replace(GOOD, class_names=("b", "a")), "in the order b, a, the others in the order a, b"),
        (replace(GOOD, refusal="no"), "no"),
    ],
)
def test_the_odd_one_out_is_refused_by_what_differs(odd: Terms, reason: str) -> None:
    found = agree({"x": odd, "y": GOOD, "z": GOOD}, "1.0")
    assert reason in found.refused["x"] and set(found.refused) == {"x"}
    assert (found.input_dim, found.output_dim, found.class_names) == (5, 2, ("a", "b"))
    assert set(found.holds) == {"y", "z"}


def test_the_course_s_class_list_stands_before_any_majority() -> None:
    odd = replace(GOOD, class_names=("x",), input_dim=10**6)
    found = agree({"p": odd, "q": odd, "r": GOOD}, "1.0", ("a", "b"))
    assert set(found.refused) == {"p", "q"} and (found.input_dim, found.class_names) == (5, ("a", "b"))


def test_terms_with_impossible_numbers_or_control_characters_do_no_harm() -> None:
    with pytest.raises(BadMessage, match="features"):
        checked_terms(replace(GOOD, input_dim=10**12))
    for number in (-1, 10**9):
        with pytest.raises(BadMessage, match="outputs"):
            checked_terms(replace(GOOD, output_dim=number))
        with pytest.raises(BadMessage, match=r"it states -?1(e\+11)? nodes"):
            checked_terms(replace(GOOD, holdings=Holdings(-1 if number < 0 else 10**11, {})))
        with pytest.raises(BadMessage, match=r"it states -?1(e\+11)? train"):
            checked_terms(replace(GOOD, holdings=Holdings(5, {"train": -1 if number < 0 else 10**11})))
    with pytest.raises(BadMessage, match="examples of 'x'; known: train, val, test"):
        checked_terms(replace(GOOD, holdings=Holdings(5, {"x": 1})))
    shown = checked_terms(replace(GOOD, holds="\x1b[31mred" + "x" * 1000, class_names=("a\nb",)))
    assert "\x1b" not in shown.holds and len(shown.holds) <= 300 and shown.class_names == ("a?b",)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("propose", proposal(course_id="../../etc")),
        ("propose", proposal()),
        ("exchange", Envelope(ID, Position(0, 1, 0), "no such request", pack(b""), "0" * 32, ())),
        ("columns", AskColumns(ID)),
        ("verdict", Verdict(ID, "your columns differ")),
        ("no such kind", AskColumns(ID)),
    ],
    ids=["refused", "agreed", "exchange", "columns", "verdict", "nonsense"],
)
def test_a_server_that_repeats_itself_does_not_fill_the_silo_s_log(
    kind: str, message: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isthmus.sites.silo.service.MAX_SAID", most := 5)
    service, said = silo(tmp_path), list[str]()
    service.say = said.append
    service.handle("propose", encode(proposal()))
    for _ in range(3 * most):
        service.handle(kind, encode(message))
    assert 1 < len(said) <= most + 1


def test_a_message_that_breaks_the_silo_is_a_refusal_and_not_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = silo(tmp_path)
    monkeypatch.setattr(service, "_read", lambda course: 1 / 0)
    assert "ZeroDivisionError" in terms(service, proposal()).refusal


def overlapping() -> Scenario:
    """Two silos of a toy graph that have the nodes 10 to 19 in common, in another order."""
    whole = scenario().whole
    parts = {"bank-a": torch.arange(0, 20), "bank-b": torch.arange(10, 30).flip(0)}
    return Scenario(whole, {name: whole.subgraph(nodes) for name, nodes in parts.items()})


def keys_of(service: SiloService, course_id: str = ID) -> torch.Tensor | None:
    """The keys of the client that a silo makes for a course."""
    assert terms(service, proposal(course_id=course_id)).refusal == ""
    client: Any = service._last.silo._make()  # type: ignore[union-attr]
    found: torch.Tensor | None = client.node_keys
    return found


def two_banks(folder: Path, id_secret: bytes | None = SECRET) -> FakeHub:
    return fake_hub(folder, made=overlapping(), id_secret=id_secret)


def test_the_same_customers_of_two_silos_have_the_same_keys_in_one_course(tmp_path: Path) -> None:
    banks = two_banks(tmp_path).silos
    a, b = keys_of(banks["bank-a"]), keys_of(banks["bank-b"])
    assert a is not None and b is not None
    assert torch.equal(a[10:], b.flip(0)[:10])
    assert len(set(a.tolist()) & set(b.tolist())) == 10
    ids = [str(number) for number in range(20)]
    assert torch.equal(a, identities.node_keys(ids, identities.course_secret(SECRET, ID)))


def test_a_silo_that_comes_back_has_the_keys_it_had(tmp_path: Path) -> None:
    hub = two_banks(tmp_path)
    before = keys_of(hub.silos["bank-a"])
    hub.restart("bank-a")
    after = keys_of(hub.silos["bank-a"])
    assert before is not None and after is not None and torch.equal(before, after)


def test_another_secret_or_another_course_has_other_keys(tmp_path: Path) -> None:
    service = two_banks(tmp_path / "one").silos["bank-a"]
    first, second = keys_of(service), keys_of(service, "fedcba9876543210")
    other = keys_of(two_banks(tmp_path / "two", b"another secret, as long").silos["bank-a"])
    assert first is not None and second is not None and other is not None
    assert len(set(first.tolist()) | set(second.tolist()) | set(other.tolist())) == 60


def test_without_a_secret_there_are_no_keys_not_even_row_numbers(tmp_path: Path) -> None:
    assert keys_of(two_banks(tmp_path, None).silos["bank-a"]) is None


def test_a_collision_names_the_nodes_at_the_silo_and_not_to_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = fake_hub(tmp_path, made=overlapping(), tell_reasons=False)
    monkeypatch.setattr(identities, "KEY_BYTES", 0)
    assert terms(hub.silos["bank-a"], proposal()).refusal.startswith("data: its data cannot be read")
    assert "the nodes '0' and '1'" in hub.said[0]

"""YAML from others: plain keys and values or a sentence, and never more work than its size allows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from isthmus.algorithms import FedAvg
from isthmus.config.load import course_to_yaml, load_course
from isthmus.core import outside
from isthmus.core.errors import BadInput
from isthmus.core.outside import MAX_DEPTH, parse_yaml, read_yaml
from isthmus.data.folders.schema.schema import read_schema
from isthmus.sites.silo.policy import load_policy
from isthmus.sites.silo.service import read_course
from isthmus.suites.spec import load_suite
from isthmus.testing import toy_course


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a: 1\nb: [x, 2.5, null, true, 'quoted', \"1\"]\nc: {d: {e: f}}",
        "lr: 1e-3\nn: 1_000\noct: 010\nhex: 0x1F\nneg: -0.5\ninf: .inf\nyes: no",
        "text: |\n  two\n  lines\nfolded: >\n  one\n  line\n",
        "- a\n- b: 1\n-\n",
        "# only a comment",
        "5",
        "{2: a, true: b, null: c}",
    ],
)
def test_plain_yaml_is_read_as_ever(text: str) -> None:
    assert parse_yaml(text, "it") == yaml.safe_load(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: &x [1]\nb: *x", "it, line 1: is not YAML: anchors and aliases are not allowed here"),
        ("a: &x 1", "anchors"),
        ("rounds: !!int ''", "tags such as 'tag:yaml.org,2002:int' are not allowed"),
        ("a: !!python/object/apply:os.system [ls]", "tags"),
        ("a: ! x", "tags"),
        ("a: 1\nb: 2\na: 3", "it, line 3: is not YAML: the key 'a' stands twice"),
        ("x: {k: 1, k: 2}", "the key 'k' stands twice"),
        ("a: {<<: {b: 1}}", "merge keys"),
        ("--- 1\n--- 2", "more than one document"),
        ("? [a, b]\n: 1", "a key is a list or has keys of its own"),
        ("{[]: 1}", "a key is a list"),
        ("a: 0x_", "'0x_' is no number"),
        ("a: " + "9" * 5000, "is no number"),
        ("{", "is not YAML"),
        ("\x00", "is not YAML"),
        ("a: \ud800", "is not YAML"),
        ("[" * 40 + "]" * 40, f"nested deeper than {MAX_DEPTH} levels"),
        ("- " * 40 + "x", "nested deeper"),
        ("? " * 40 + "x", "nested deeper"),
        ("{a: " * 40, "nested deeper"),
    ],
)
def test_what_is_not_plain_is_refused_with_the_line(text: str, problem: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_yaml(text, "it")
    assert problem in str(caught.value) and len(str(caught.value)) < 300


def test_a_date_is_text_also_an_impossible_one() -> None:
    assert parse_yaml("a: 2026-01-31\nb: 2026-13-45", "it") == {"a": "2026-01-31", "b": "2026-13-45"}


def events_until_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Count the events that are taken from the parser until a text is refused."""
    taken = 0
    parse = yaml.parse

    def counted(*arguments: Any, **named: Any) -> Any:
        nonlocal taken
        for event in parse(*arguments, **named):
            taken += 1
            yield event

    monkeypatch.setattr(yaml, "parse", counted)
    with pytest.raises(BadInput):
        parse_yaml(text, "it")
    return taken


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? ", "[{", "a:\n [["])
@pytest.mark.parametrize("parser", ["C", "Python"])
def test_a_hundred_thousand_openings_cost_as_little_as_forty(
    opening: str, parser: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if parser == "Python":
        monkeypatch.setattr(outside, "_PARSER", yaml.SafeLoader)
    assert events_until_refused(opening * 100_000, monkeypatch) < 4 * MAX_DEPTH


def test_values_are_counted_before_they_are_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside, "MAX_VALUES", 50)
    assert parse_yaml("[" + "1," * 40 + "]", "it") == [1] * 40
    assert events_until_refused("[" + "1," * 100_000 + "]", monkeypatch) < 60


def test_a_file_without_end_is_not_read_to_its_end(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="the limit is 1000"):
        read_yaml(Path("/dev/zero"), max_characters=1000)
    with pytest.raises(BadInput, match="cannot be read: Is a directory"):
        read_yaml(tmp_path)
    (tmp_path / "latin").write_bytes(b"a: \xe9")
    with pytest.raises(BadInput, match="is not YAML"):
        read_yaml(tmp_path / "latin")


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{c}: &{c} [{','.join([f'*{p}'] * 9)}]\n" for p, c in zip("abcdefg", "bcdefgh", strict=True)
)


@pytest.mark.parametrize("read", [load_course, load_policy, read_schema, load_suite])
@pytest.mark.parametrize("text", [BOMB, "rounds: !!int ''", "[" * 30_000, "rounds: 1\nrounds: 2", "seed: 0b_"])
def test_every_file_that_people_hand_on_goes_through_it(read: Any, text: str, tmp_path: Path) -> None:
    path = tmp_path / "theirs.yaml"
    path.write_text(text)
    with pytest.raises(BadInput, match=r"theirs\.yaml, line \d+: is not YAML"):
        read(path)
    with pytest.raises(BadInput, match="is not YAML"):
        read_course(text)


def test_no_other_part_of_the_package_loads_yaml() -> None:
    package = Path(outside.__file__).parents[1]
    for path in package.rglob("*.py"):
        source = path.read_text()
        for call in ("yaml.safe_load", "yaml.load", "yaml.parse(", "yaml.compose", "yaml.scan"):
            assert call not in source.replace("`yaml.safe_load`", "") or path.name == "outside.py", path


def test_a_course_with_one_list_in_two_places_is_written_so_that_it_can_be_read() -> None:
    shared = {"optimizer.lr": 0.5}
    course = toy_course(FedAvg(), client_settings={"client-0": shared, "client-1": shared})
    assert load_course(yaml.safe_load(course_to_yaml(course))) == read_course(course_to_yaml(course))

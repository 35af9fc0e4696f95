from __future__ import annotations

import dataclasses
import sys
import types
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from isthmus.algorithms import FedAvg, FedProx, Local
from isthmus.config import registry as tables
from isthmus.config.build import Builder, describe, name_of
from isthmus.config.course import Course
from isthmus.config.registry import FAMILIES, Family, find_part, known_names
from isthmus.core.errors import BadInput
from isthmus.core.protocol import Algorithm
from isthmus.learn.batching import Batching, NeighborBatch
from isthmus.learn.optimizers import SGD, Adam, Cosine
from isthmus.models import GCN, SGC, LinearEncoder, MLPDecoder, ModelSpec

# Fields without a default, for the parts that have some.
NEEDED: dict[str, dict[str, Any]] = {"folder": {"path": "graph"}}


@dataclass(frozen=True)
class Mine(FedAvg):
    """A user's own algorithm."""

    strength: float = 1.0


@dataclass(frozen=True)
class Kinds:
    """Every kind of plain field."""

    whole: int = 1
    number: float = 1.0
    truth: bool = False
    text: str = "x"
    maybe: float | None = 1.0
    name_or_none: str | None = None
    wholes: tuple[int, ...] = (1,)
    numbers: tuple[float, ...] = (1.0,)
    either: int | str = 1


@dataclass(frozen=True)
class Picky:
    limit: int = 1

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise ValueError(f"limit is {self.limit!r}; it must be at least 1")


def build(kind: type[Any], raw: Any, **options: Any) -> Any:
    return Builder("file.yaml", **options).build(kind, raw, "here")


def course(raw: dict[str, Any], **options: Any) -> Course:
    built = Builder("file.yaml", **options).fields(Course, raw, "")
    assert isinstance(built, Course)
    return built


def reason(raw: dict[str, Any], **options: Any) -> str:
    with pytest.raises(BadInput) as caught:
        course(raw, **options)
    return str(caught.value)


# ---- there and back

EVERY_PART = [(family, name) for family in FAMILIES for name in FAMILIES[family].table]


@pytest.mark.parametrize(("family", "name"), EVERY_PART, ids=lambda value: getattr(value, "__name__", value))
def test_every_part_of_every_table_is_described_and_built_again(family: type[Any], name: str) -> None:
    kind = FAMILIES[family].table[name]
    part = kind(**NEEDED.get(name, {}))
    plain = yaml.safe_load(yaml.safe_dump(describe(part)))
    assert plain["name"] == name == name_of(kind)
    again = build(family, plain)
    assert type(again) is kind and again == part
    assert build(family, {"name": name, **NEEDED.get(name, {})}) == part
    if name not in NEEDED:
        assert build(family, name) == part


@pytest.mark.parametrize(("family", "name"), EVERY_PART, ids=lambda value: getattr(value, "__name__", value))
def test_every_field_of_every_part_is_a_key(family: type[Any], name: str) -> None:
    kind = FAMILIES[family].table[name]
    fields = [field.name for field in dataclasses.fields(kind)]
    assert [key for key in describe(kind(**NEEDED.get(name, {}))) if key != "name"] == fields
    assert "name" not in fields
    with pytest.raises(BadInput, match=r"here\.no_such_key is not a known key"):
        build(family, {"name": name, **NEEDED.get(name, {}), "no_such_key": 1})


def test_every_family_has_a_table() -> None:
    assert len(EVERY_PART) >= 30 and all(family.table for family in FAMILIES.values())


def test_a_course_of_unusual_parts_is_described_and_built_again() -> None:
    before = Course(
        algorithm=FedProx(mu=0.5, optimizer=Adam(lr=1e-3, schedule=Cosine(rounds=7, warmup_rounds=2))),
        model=ModelSpec(gnn=GCN(hidden=3), encoder=LinearEncoder(), decoder=MLPDecoder()),
        batching=NeighborBatch(fanouts=(3, -1)),
        timeout_seconds=2.5,
        sinks=("tensorboard",),
    )
    plain = yaml.safe_load(yaml.safe_dump(describe(before)))
    assert course(plain) == before
    assert plain["algorithm"]["optimizer"]["schedule"]["name"] == "cosine"
    assert plain["batching"]["fanouts"] == [3, -1]


# ---- parts by name


def test_a_name_alone_stands_for_the_part_with_its_defaults() -> None:
    found = course({"algorithm": "fedprox", "model": {"gnn": "sgc", "encoder": "linear"}})
    assert found.algorithm == FedProx()
    assert found.model == ModelSpec(gnn=SGC(), encoder=LinearEncoder())


def test_keys_without_a_name_change_the_default_part() -> None:
    assert course({"algorithm": {"local_steps": 9}}).algorithm == FedAvg(local_steps=9)
    assert course({"algorithm": {"optimizer": {"lr": 1.0}}}).algorithm == FedAvg(
        optimizer=SGD(lr=1.0, weight_decay=5e-4)
    )


def test_another_name_starts_from_the_new_parts_defaults() -> None:
    found = course({"algorithm": {"name": "fedavg", "optimizer": {"name": "adam"}}}).algorithm
    assert found == FedAvg(optimizer=Adam())
    same_name = course({"algorithm": {"name": "fedavg", "optimizer": {"name": "sgd"}}}).algorithm
    assert same_name == FedAvg()  # the default optimiser keeps its weight decay


def test_parts_may_be_given_as_objects() -> None:
    assert course({"algorithm": Mine(strength=2.0)}).algorithm == Mine(strength=2.0)


def test_null_takes_an_optional_part_away_and_is_refused_for_others() -> None:
    model = ModelSpec(decoder=MLPDecoder())
    assert Builder().build(ModelSpec, {"decoder": None}, "model", model) == ModelSpec()
    assert reason({"algorithm": None}) == "file.yaml: algorithm is None, expected keys and values"


def test_an_unknown_name_is_an_error_with_the_nearest() -> None:
    found = reason({"algorithm": {"name": "fedporx"}})
    assert found.startswith("file.yaml: algorithm.name is 'fedporx'; known: ")
    assert found.endswith("Did you mean 'fedprox'?")
    assert "model.gnn.name is 'gnc'" in reason({"model": {"gnn": "gnc"}})
    assert "algorithm.optimizer.schedule.name is 'cos'" in reason({"algorithm": {"optimizer": {"schedule": "cos"}}})


@pytest.mark.parametrize("raw", [{}, {"name": None}])
def test_a_part_without_a_default_needs_a_name(raw: dict[str, Any]) -> None:
    assert "model.encoder.name is missing; known: categorical, linear, mlp" in reason({"model": {"encoder": raw}})


@pytest.mark.parametrize("name", [3, ["fedavg"], {"x": 1}, True])
def test_a_name_that_is_no_text_is_refused(name: Any) -> None:
    assert "algorithm.name is" in reason({"algorithm": {"name": name}})


@pytest.mark.parametrize("raw", [3, ["fedavg"], 1.5, True])
def test_a_part_that_is_neither_name_nor_keys_is_refused(raw: Any) -> None:
    assert reason({"algorithm": raw}) == f"file.yaml: algorithm is {raw!r}, expected keys and values"


# ---- import paths and entry points


def test_an_import_path_names_a_users_own_part() -> None:
    path = f"{__name__}:Mine"
    found = course({"algorithm": {"name": path, "strength": 3}}).algorithm
    assert found == Mine(strength=3)
    assert name_of(Mine) == path and describe(found)["name"] == path
    assert course(describe(Course(algorithm=found))).algorithm == found


def test_import_paths_may_be_forbidden() -> None:
    found = reason({"algorithm": {"name": f"{__name__}:Mine"}}, allow_import=False)
    assert "import paths are not allowed here: install the part as an entry point" in found
    assert course({"algorithm": "fedprox"}, allow_import=False).algorithm == FedProx()


def test_nothing_is_imported_where_import_paths_are_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("something was imported")

    monkeypatch.setattr(tables.importlib, "import_module", never)
    reason({"algorithm": {"name": "os:system"}}, allow_import=False)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("no_such_module:X", "cannot be imported: No module named 'no_such_module'"),
        ("json:NoSuchClass", "cannot be imported"),
        (":X", "cannot be imported: ValueError"),
        (".relative:X", "cannot be imported: TypeError"),
        ("os:path.join", "is not a class"),
        ("json:JSONDecoder", "is not a dataclass"),
        ("builtins:int", "is not a dataclass"),
        ("isthmus.models:GCN", "is 'gcn', which is no Algorithm"),
        ("isthmus.core.protocol:Algorithm", "abstract"),
    ],
)
def test_an_import_path_that_leads_to_no_algorithm_is_refused(path: str, why: str) -> None:
    found = reason({"algorithm": path})
    assert found.startswith("file.yaml: algorithm") and why in found


def test_a_module_that_breaks_while_it_is_imported_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / "broken_module_of_a_user.py").write_text("def oh(:\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = reason({"algorithm": "broken_module_of_a_user:X"})
    assert "'broken_module_of_a_user:X', which cannot be imported: SyntaxError" in found


def test_an_installed_package_adds_names(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("their_package")
    kind = dataclass(frozen=True)(type("Theirs", (FedAvg,), {"__module__": "their_package", "__doc__": "Theirs."}))
    module.Theirs = kind  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "their_package", module)
    monkeypatch.setattr(tables, "_installed", lambda f: {"theirs": "their_package:Theirs"} if f == "algorithms" else {})
    found = course({"algorithm": "theirs"}, allow_import=False).algorithm
    assert type(found) is kind
    assert "theirs" in known_names(FAMILIES[Algorithm])
    # Described by its name, so that a silo that forbids import paths can build it too.
    assert describe(found)["name"] == "theirs"


def test_our_own_names_come_before_those_of_other_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_installed", lambda family: {"local": "json:JSONDecoder"})
    assert find_part(FAMILIES[Algorithm], "local", "x") is Local
    assert known_names(Family("algorithms", {"local": Local})) == ["local"]


# ---- plain values


@pytest.mark.parametrize(
    ("key", "raw", "value"),
    [
        ("number", 1, 1.0),
        ("number", 0.5, 0.5),
        ("number", "1e-3", 0.001),
        ("numbers", ["1e-3", 2, 0.5], (0.001, 2.0, 0.5)),
        ("wholes", [3, 4], (3, 4)),
        ("wholes", (3, 4), (3, 4)),
        ("wholes", [], ()),
        ("maybe", None, None),
        ("maybe", "5e-4", 0.0005),
        ("name_or_none", None, None),
        ("name_or_none", "a", "a"),
        ("truth", True, True),
        ("text", "1e-3", "1e-3"),
        ("either", "a", "a"),
        ("either", 2, 2),
    ],
)
def test_a_plain_value_fits(key: str, raw: Any, value: Any) -> None:
    found = getattr(build(Kinds, {key: raw}), key)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("key", "raw", "why"),
    [
        ("whole", 1.0, "file.yaml: here.whole is 1.0, expected a whole number"),
        ("whole", "1", "file.yaml: here.whole is '1', expected a whole number"),
        ("whole", True, "file.yaml: here.whole is True, expected a whole number"),
        ("whole", None, "file.yaml: here.whole is None, expected a whole number"),
        ("number", "fast", "file.yaml: here.number is 'fast', expected a number"),
        ("number", True, "file.yaml: here.number is True, expected a number"),
        ("number", [1.0], "file.yaml: here.number is [1.0], expected a number"),
        ("truth", 1, "file.yaml: here.truth is 1, expected true or false"),
        ("truth", "yes", "file.yaml: here.truth is 'yes', expected true or false"),
        ("text", 3, "file.yaml: here.text is 3, expected text"),
        ("text", None, "file.yaml: here.text is None, expected text"),
        ("maybe", "x", "file.yaml: here.maybe is 'x', expected a number or null"),
        ("wholes", 3, "file.yaml: here.wholes is 3, expected a list of entries that are each a whole number"),
        ("wholes", "12", "file.yaml: here.wholes is '12', expected a list of entries that are each a whole number"),
        ("wholes", [1, 2.5], "file.yaml: here.wholes[1] is 2.5, expected a whole number"),
        ("numbers", [1, "x"], "file.yaml: here.numbers[1] is 'x', expected a number"),
        ("either", 1.5, "file.yaml: here.either is 1.5, expected a whole number or text"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_place_and_remedy(key: str, raw: Any, why: str) -> None:
    with pytest.raises(BadInput) as caught:
        build(Kinds, {key: raw})
    assert str(caught.value) == why


def test_an_unknown_key_is_refused_with_the_nearest() -> None:
    assert reason({"round": 5}).endswith("Did you mean 'rounds'?")
    assert reason({"round": 5}).startswith("file.yaml: round is not a known key; known: algorithm, ")
    nested = reason({"algorithm": {"optimizer": {"leraning_rate": 1}}})
    assert nested.startswith("file.yaml: algorithm.optimizer.leraning_rate is not a known key; known: lr, ")
    assert "stopping.patient" in reason({"stopping": {"patient": 3}})
    assert reason({5: 1}).startswith("file.yaml: 5 is not a known key")  # type: ignore[dict-item]


def test_a_missing_field_is_named() -> None:
    @dataclass(frozen=True)
    class Needy:
        must: int

    with pytest.raises(BadInput, match=r"^file\.yaml: here\.must is missing; give it a value$"):
        Builder("file.yaml").fields(Needy, {}, "here")


def test_a_value_that_a_class_refuses_is_told_with_its_place() -> None:
    with pytest.raises(BadInput, match=r"^file\.yaml: here: limit is 0; it must be at least 1$"):
        build(Picky, {"limit": 0})
    assert reason({"sampling": {"fraction": 2.0}}).startswith("file.yaml: sampling: fraction is 2.0")


def test_without_a_source_only_the_place_is_named() -> None:
    with pytest.raises(BadInput, match=r"^rounds is 'x', expected a whole number$"):
        Builder().fields(Course, {"rounds": "x"}, "")


def test_an_object_that_cannot_be_built_again_is_told_apart_by_its_repr() -> None:
    assert describe({"x": slice(1, 2)}) == {"x": {"object": "slice(1, 2, None)"}}


def test_names_belong_to_their_family() -> None:
    with pytest.raises(BadInput, match="x is 'gcn'; known: "):
        find_part(FAMILIES[Batching], "gcn", "x")

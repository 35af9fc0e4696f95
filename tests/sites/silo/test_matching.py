"""Ids that go round all silos: equal keys for equal ids, and nothing for anybody who asks in another way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from isthmus.core.codec import decode, encode
from isthmus.core.errors import BadInput, BadMessage
from isthmus.core.guards.guard import Signer
from isthmus.data.folders.graph_folder import GraphFolder
from isthmus.data.folders.own_folder import OwnData
from isthmus.sites.courses.messages import NO_POINTS, PassOn, Points
from isthmus.sites.silo import blinding
from isthmus.sites.silo.hand import Hand
from isthmus.sites.silo.matching import Matching
from isthmus.testing import toy_graph
from tests.sites.silo.test_consent import identity

IDS = {"a": ("x", "y", "z"), "b": ("z", "w"), "c": ("y", "z", "v", "u")}
Bend = Callable[[str, PassOn], PassOn]


@dataclass(frozen=True)
class Neighbours:
    """Edges to others, as a folder has them."""

    node: torch.Tensor
    ids: tuple[str, ...]
    weight: torch.Tensor | None = None


def folder(ids: tuple[str, ...], foreign: tuple[str, ...] = ()) -> OwnData[Any]:
    graph = toy_graph(len(ids))
    edges: Any = Neighbours(torch.zeros(len(foreign), dtype=torch.long), foreign) if foreign else None
    return GraphFolder(graph, {"id": ids}, ids, foreign=edges)


@dataclass
class Ring:
    """Some silos, and a server that bends what it carries."""

    place: Path
    ids: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: IDS)
    foreign: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    course: str = "ab" * 16
    signed: bool = False
    carried: list[tuple[str, int, Points]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.silos = {}
        for name, ids in self.ids.items():
            signer: Signer | None = Hand(identity(self.place / "keys", name)) if self.signed else None
            held = folder(ids, self.foreign.get(name, ()))
            self.silos[name] = Matching(name, self.course, held, self.place / name / "matched", signer)

    def go(self, bend: Bend = lambda site, request: request, attempt: str = "first") -> None:
        ring = tuple(sorted(self.silos))
        handed = dict.fromkeys(ring, NO_POINTS)
        for step in range(len(ring) + 1):
            came = {}
            for at, name in enumerate(ring):
                request = bend(name, PassOn(self.course, attempt, ring, step, handed[ring[at - 1]]))
                came[name] = self.silos[name].passed(decode(encode(request), PassOn))
                self.carried.append((name, step, came[name]))
            handed = came

    def keys(self) -> dict[str, dict[str, int]]:
        found = {}
        for name, silo in self.silos.items():
            keys, _ = silo.keys()
            assert keys is not None
            found[name] = dict(zip(self.ids[name], keys.tolist(), strict=True))
        return found


def test_equal_ids_have_equal_keys_and_others_have_others(tmp_path: Path) -> None:
    ring = Ring(tmp_path)
    ring.go()
    found: dict[str, set[int]] = {}
    for keys in ring.keys().values():
        for id, key in keys.items():
            found.setdefault(id, set()).add(key)
    assert all(len(keys) == 1 for keys in found.values())
    assert len(set().union(*found.values())) == len(found) == 6


def test_neighbours_at_other_silos_have_the_keys_of_their_hosts(tmp_path: Path) -> None:
    ring = Ring(tmp_path, foreign={"b": ("x", "u", "x")})
    ring.go()
    keys, (_, edges) = ring.keys(), ring.silos["b"].keys()
    assert edges is not None and edges.key.tolist() == [keys["a"]["x"], keys["c"]["u"], keys["a"]["x"]]
    assert ring.silos["a"].keys()[1] is None


def test_two_spellings_of_an_id_are_one(tmp_path: Path) -> None:
    ring = Ring(tmp_path, {"a": ("caf\u00e9", "b"), "b": ("cafe\u0301", "c")})
    ring.go()
    keys = ring.keys()
    assert keys["a"]["caf\u00e9"] == keys["b"]["cafe\u0301"]
    with pytest.raises(BadInput, match="two Unicode spellings"):
        Matching("a", "ab", folder(("caf\u00e9", "cafe\u0301")), tmp_path / "x")


def test_no_ring_and_no_course_has_keys_of_another(tmp_path: Path) -> None:
    seen: set[int] = set()
    for number, course in enumerate(("ab" * 16, "ab" * 16, "cd" * 16)):
        ring = Ring(tmp_path / str(number), course=course)
        ring.go()
        seen |= {key for keys in ring.keys().values() for key in keys.values()}
    assert len(seen) == 3 * 6


def test_what_is_carried_is_as_good_as_random(tmp_path: Path) -> None:
    """No point is there twice, though three silos have ids in common, and none is a hash of an id or of a key."""
    ring = Ring(tmp_path)
    ring.go()
    rows = [bytes(row.tolist()) for _, _, points in ring.carried for row in points.points]
    assert len(rows) == len(set(rows)) == 3 * 9
    assert not set(rows) & {blinding.point_of(id) for ids in IDS.values() for id in ids}


def test_points_are_in_another_order_than_the_nodes(tmp_path: Path) -> None:
    ids = tuple(f"{number:03}" for number in range(60))
    ring = Ring(tmp_path, {"a": ids, "b": ids})
    orders = []
    for attempt in ("first", "second"):
        ring.carried.clear()
        ring.go(attempt=attempt)
        orders.append(ring.silos["a"].file.read_bytes())
    assert orders[0] != orders[1]
    turn = ring.silos["a"]._turn(PassOn(ring.course, "third", ("a", "b"), 0, NO_POINTS))
    assert turn.order.tolist() != list(range(60)) and sorted(turn.order.tolist()) == list(range(60))


# ---- what a server tries


def hijacked(ring: Ring, step: int, who: str, change: Callable[[PassOn], PassOn]) -> None:
    ring.go(lambda site, request: change(request) if (site, request.step) == (who, step) else request, "hijacked")


def handing(points: Points) -> Callable[[PassOn], PassOn]:
    return lambda request: replace(request, handed=points)


@pytest.mark.parametrize("step", [1, 2, 3])
def test_points_of_the_servers_own_are_multiplied_by_nobody(step: int, tmp_path: Path) -> None:
    """Or it could make the keys of all ids that it can guess."""
    ring = Ring(tmp_path, signed=True)
    ring.go()
    guesses = Points(blinding.points_of(["x", "y", "z"]), "")
    for handed in (guesses, replace(guesses, signature=ring.carried[0][2].signature)):
        with pytest.raises(BadMessage, match=r"what c is said to have handed on|points came back"):
            hijacked(Ring(tmp_path, signed=True), step, "a", handing(handed))


def test_what_was_handed_on_for_another_step_ring_or_origin_counts_for_nothing(tmp_path: Path) -> None:
    ring = Ring(tmp_path, {name: ("x", "y", "z") for name in "abc"}, signed=True)
    ring.go()
    by = {(name, step): points for name, step, points in ring.carried}
    for points in (by["c", 0], by["c", 1], by["c", 2]):  # of the ring before
        with pytest.raises(BadMessage, match="signature is not of this"):
            hijacked(Ring(tmp_path, ring.ids, signed=True), 1, "a", handing(points))

    def late(site: str, request: PassOn) -> PassOn:
        if (site, request.step) == ("a", 2):  # what it was handed at the step before
            return replace(request, handed=kept[0])
        if (site, request.step) == ("a", 1):
            kept.append(request.handed)
        return request

    kept: list[Points] = []
    with pytest.raises(BadMessage, match="signature is not of this"):
        Ring(tmp_path, ring.ids, signed=True).go(late)


def test_a_step_is_done_once_and_in_its_turn(tmp_path: Path) -> None:
    silo = Ring(tmp_path).silos["a"]
    first = PassOn(silo.course_id, "one", ("a", "b"), 0, NO_POINTS)
    handed = silo.passed(first)
    with pytest.raises(BadMessage, match="begun already"):
        silo.passed(first)
    for wrong in (replace(first, step=2), replace(first, step=1, ring=("a", "c")), replace(first, attempt="x", step=1)):
        with pytest.raises(BadMessage, match="not the next step"):
            silo.passed(replace(wrong, handed=handed))
    silo.passed(replace(first, step=1, handed=handed))
    with pytest.raises(BadMessage, match="not the next step"):
        silo.passed(replace(first, step=1, handed=handed))


def test_a_new_ring_has_new_secrets_and_the_old_one_is_over(tmp_path: Path) -> None:
    silo = Ring(tmp_path).silos["a"]
    first = PassOn(silo.course_id, "one", ("a", "b"), 0, NO_POINTS)
    one = silo.passed(first)
    two = silo.passed(replace(first, attempt="two"))
    assert not set(map(tuple, one.points.tolist())) & set(map(tuple, two.points.tolist()))
    with pytest.raises(BadMessage, match="not the next step"):
        silo.passed(replace(first, step=1, handed=one))


@pytest.mark.parametrize(
    "points",
    [
        torch.zeros(3, 31, dtype=torch.uint8),
        torch.zeros(3, 32),
        torch.zeros(96, dtype=torch.uint8),
        torch.zeros(3, 32, dtype=torch.uint8),
    ],
)
def test_what_are_no_points_is_refused(points: torch.Tensor, tmp_path: Path) -> None:
    with pytest.raises(BadMessage):
        hijacked(Ring(tmp_path), 1, "a", handing(Points(points, "")))


def test_fewer_points_than_went_out_and_two_that_are_one_are_noticed(tmp_path: Path) -> None:
    def fewer(request: PassOn) -> PassOn:
        return replace(request, handed=Points(request.handed.points[:-1], ""))

    def twice(request: PassOn) -> PassOn:
        return replace(request, handed=Points(request.handed.points[[0, 0, 1]], ""))

    with pytest.raises(BadMessage, match="2 of 3 points came back"):
        hijacked(Ring(tmp_path), 3, "a", fewer)
    with pytest.raises(BadMessage, match="two ids came back as one"):
        hijacked(Ring(tmp_path), 3, "a", twice)


# ---- what is kept


def test_keys_are_found_again_by_the_same_ids_only(tmp_path: Path) -> None:
    ring = Ring(tmp_path)
    assert ring.silos["a"].keys() == (None, None)
    ring.go()
    keys = ring.keys()["a"]
    again = Matching("a", ring.course, folder(("z", "x", "y")), ring.silos["a"].file).keys()[0]
    assert again is not None and again.tolist() == [keys["z"], keys["x"], keys["y"]]
    assert Matching("a", ring.course, folder(("x", "y")), ring.silos["a"].file).keys() == (None, None)
    assert ring.silos["a"].file.stat().st_mode & 0o777 == 0o600
    ring.silos["a"].file.write_bytes(b"damaged")
    assert ring.silos["a"].keys() == (None, None)


def test_ids_that_hold_within_a_graph_only_cannot_be_matched(tmp_path: Path) -> None:
    plain = replace(folder(("a", "b")), node_ids=None)
    with pytest.raises(BadInput, match="within a graph only"):
        Matching("a", "ab", plain, tmp_path / "x")

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from isthmus.core.errors import BadInput, MissingData
from isthmus.data.graph_set import GraphSet
from isthmus.data.zoo.multi_task import MultiTaskMol, MultiTaskMoleculeNet, join
from tests.data.test_graph_set import make_set

from ..strategies import dense

Root = Callable[..., Path]


def test_the_seven_sets_of_the_paper_are_side_by_side(real_root: Root) -> None:
    kinds = MultiTaskMol.members
    root = real_root(*(file for kind in kinds for file in kind().needs))
    assert MultiTaskMol().present(root)
    joined = MultiTaskMol().load(root)
    assert joined.attribute_names["dataset"] == ("MUTAG", "BZR", "COX2", "DHFR", "PTC_MR", "AIDS", "NCI1")
    of = joined.attributes["dataset"]
    assert torch.bincount(of).tolist() == [188, 405, 467, 756, 344, 2000, 4110]
    assert (joined.num_items, joined.num_nodes, joined.num_features, joined.num_classes) == (8270, 228224, 241, 7)
    assert torch.equal(~joined.y.isnan(), torch.nn.functional.one_hot(of, 7).bool()), "one label, in its own column"
    first = 0
    for number, (kind, part) in enumerate(
        zip(kinds, joined.divide([(of == k).nonzero()[:, 0] for k in range(7)]), strict=True)
    ):
        alone = kind(use_attributes=False).load(root)
        x = dense(part.x)
        assert torch.equal(x[:, first : first + alone.num_features], dense(alone.x))
        assert float(x.sum()) == alone.num_nodes, "a column of another set is set"
        assert torch.equal(part.edge_index, alone.edge_index) and torch.equal(part.node_start, alone.node_start)
        assert torch.equal(part.y[:, number], alone.y.float())
        first += alone.num_features


def test_sets_of_moleculenet_share_their_features(
    real_root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_digests: None
) -> None:
    """With the first hundred molecules of each, which are read in no time."""
    pytest.importorskip("rdkit")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    members = MultiTaskMoleculeNet.members[1:3]  # BBBP and ClinTox: the others take long
    monkeypatch.setattr(MultiTaskMoleculeNet, "members", members)
    files = [file for kind in members for file in kind().needs]
    whole, root = real_root(*files), tmp_path / "few"
    for file in files:
        (root / file).parent.mkdir(parents=True)
        (root / file).write_text("".join((whole / file).read_text().splitlines(keepends=True)[:101]))
    bbbp, clintox = (kind().load(root) for kind in members)
    joined = MultiTaskMoleculeNet().load(root)
    assert 80 < bbbp.num_items <= 100 and 80 < clintox.num_items <= 100
    assert (joined.num_items, joined.num_classes, joined.num_features) == (bbbp.num_items + clintox.num_items, 3, 9)
    assert joined.class_names == ("bbbp: BBBP", "clintox: FDA_APPROVED", "clintox: CT_TOX")
    assert (~joined.y.isnan()).sum(dim=0).tolist() == [bbbp.num_items, clintox.num_items, clintox.num_items]
    last = clintox.attributes["scaffold"][-1]
    name = joined.attribute_names["scaffold"][int(joined.attributes["scaffold"][-1])]
    assert name == clintox.attribute_names["scaffold"][int(last)]
    columns = MultiTaskMoleculeNet(one_hot=True).load(root)
    assert columns.num_features == 177 and dense(columns.x).sum(dim=1).unique().tolist() == [9.0]
    with pytest.raises(BadInput, match="multi_task_moleculenet are numbers of values"):
        MultiTaskMoleculeNet(normalize_features=True).load(root)


def named(sizes: list[int], seed: int, tasks: int, shapes: tuple[str, ...]) -> GraphSet:
    graphs = make_set(sizes, seed=seed, tasks=tasks)
    shape = torch.arange(len(sizes)) % len(shapes)
    return replace(
        graphs,
        attributes={"size": graphs.sizes, "shape": shape},
        attribute_names={"shape": shapes},
        class_names=tuple(f"t{t}" for t in range(tasks)),
    )


def test_joined_sets_come_apart_as_they_were() -> None:
    sets = {"one": named([2, 0, 3], 1, 1, ("ring", "line")), "two": named([4, 1], 2, 2, ("line", "tree"))}
    joined = join(sets, "both")
    assert joined.y.shape == (5, 3) and joined.class_names == ("one: t0", "two: t0", "two: t1")
    assert joined.attribute_names == {"shape": ("line", "ring", "tree"), "dataset": ("one", "two")}
    assert [joined.attribute_names["shape"][i] for i in joined.attributes["shape"].tolist()] == [
        *("ring", "line", "ring"),
        *("line", "tree"),
    ]
    parts = joined.divide([torch.arange(3), torch.arange(3, 5)])
    for part, alone, columns in zip(parts, sets.values(), (slice(0, 1), slice(1, 3)), strict=True):
        assert torch.equal(part.x, alone.x) and torch.equal(part.edge_index, alone.edge_index)
        assert part.edge_attr is not None and alone.edge_attr is not None
        assert torch.equal(part.edge_attr, alone.edge_attr) and torch.equal(part.sizes, alone.sizes)
        assert torch.equal(part.y[:, columns].nan_to_num(-1), alone.y.nan_to_num(-1))


def test_labels_of_two_kinds_are_refused() -> None:
    sets = {"one": make_set([2], tasks=1), "two": replace(make_set([2], tasks=1), target="value")}
    with pytest.raises(BadInput, match="labels binary, value cannot be joined"):
        join(sets, "both")


def test_absent_files_are_named(tmp_path: Path) -> None:
    assert not MultiTaskMol().present(tmp_path) and not MultiTaskMoleculeNet().present(tmp_path)
    with pytest.raises(MissingData, match="TU/MUTAG/raw"):
        MultiTaskMol().load(tmp_path)

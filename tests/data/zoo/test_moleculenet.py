from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from isthmus.core.errors import BadInput, MissingData, MissingExtra
from isthmus.data.zoo import moleculenet as module
from isthmus.data.zoo.moleculenet import (
    ATOM_FEATURES,
    BACE,
    BBBP,
    BOND_FEATURES,
    ESOL,
    HIV,
    SIDER,
    ClinTox,
    FreeSolv,
    Lipo,
    MoleculeNet,
    Tox21,
    read_molecules,
    read_table,
)

pytest.importorskip("rdkit", reason="molecules need rdkit: pip install 'isthmus[molecules]'")

Root = Callable[..., Path]

# Rows of the csv file, molecules, tasks, kind of labels, missing labels.
PUBLISHED: dict[type[MoleculeNet], tuple[int, int, int, str, int]] = {
    BACE: (1513, 1513, 1, "binary", 0),
    BBBP: (2050, 2039, 1, "binary", 0),
    ClinTox: (1484, 1480, 2, "binary", 0),
    SIDER: (1427, 1427, 27, "binary", 0),
    Tox21: (7831, 7823, 12, "binary", 16012),
    ESOL: (1128, 1128, 1, "value", 0),
    Lipo: (4200, 4200, 1, "value", 0),
    FreeSolv: (642, 642, 1, "value", 0),
    HIV: (41127, 41120, 1, "binary", 0),
}
SMALL = (ESOL, FreeSolv)


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Keep arrays of molecules in a folder of the test."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    yield folder


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=() if kind in SMALL else pytest.mark.slow, id=kind.name) for kind in PUBLISHED],
)
def test_counts_are_those_of_the_literature(real_root: Root, kind: type[MoleculeNet]) -> None:
    root = real_root(*kind().needs)
    num_rows, num_molecules, num_tasks, target, num_missing = PUBLISHED[kind]
    assert len(read_table(root / kind().needs[0], kind.smiles, kind.tasks)[0]) == num_rows
    graphs = kind().load(root)
    assert (graphs.num_items, graphs.num_classes, graphs.target) == (num_molecules, num_tasks, target)
    assert graphs.y.shape == (num_molecules, num_tasks) and int(graphs.y.isnan().sum()) == num_missing
    assert target == "value" or set(graphs.y[~graphs.y.isnan()].tolist()) == {0.0, 1.0}
    assert graphs.x.shape[1] == 9 and graphs.edge_attr is not None and graphs.edge_attr.shape == (graphs.num_edges, 3)
    assert bool((graphs.x < torch.tensor(graphs.x_sizes)).all()) and bool((graphs.x >= 0).all())
    assert bool((graphs.edge_attr < torch.tensor(graphs.edge_sizes)).all())
    names = graphs.attribute_names["scaffold"]
    assert list(names) == sorted(set(names)) and torch.bincount(graphs.attributes["scaffold"]).min() > 0
    assert int(graphs.attributes["scaffold"].max()) + 1 == len(names)
    assert torch.equal(graphs.attributes["size"], graphs.sizes) and len(graphs.class_names) == num_tasks
    assert int(graphs.graph_ids[-1]) < num_rows and bool((graphs.graph_ids.diff() > 0).all())


@pytest.mark.parametrize("kind", [kind for kind in PUBLISHED if kind is not HIV], ids=lambda kind: kind.name)
def test_tables_have_the_rows_and_tasks_of_the_literature(real_root: Root, kind: type[MoleculeNet]) -> None:
    root = real_root(*kind().needs)
    path = root / kind().needs[0]
    smiles, labels, _ = read_table(path, kind.smiles, kind.tasks)
    num_rows, _, num_tasks, target, _ = PUBLISHED[kind]
    assert len(smiles) == num_rows and labels.shape == (num_rows, num_tasks) and all(smiles)
    assert (target == "binary") == (set(labels[~np.isnan(labels)].tolist()) == {0.0, 1.0})


@pytest.mark.parametrize("kind", [pytest.param(BBBP, marks=pytest.mark.slow), FreeSolv])
def test_features_are_those_of_torch_geometric_molecule_by_molecule(real_root: Root, kind: type[MoleculeNet]) -> None:
    from torch_geometric.utils import from_smiles

    root = real_root(*kind().needs)
    smiles = read_table(root / kind().needs[0], kind.smiles, kind.tasks)[0]
    graphs = kind().load(root)
    for position in range(0, graphs.num_items, 37):
        (mine,) = graphs.divide([torch.tensor([position])])
        theirs = from_smiles(smiles[int(graphs.graph_ids[position])])
        assert torch.equal(mine.x, theirs.x.float()) and torch.equal(mine.edge_index, theirs.edge_index)
        assert mine.edge_attr is not None and torch.equal(mine.edge_attr, theirs.edge_attr.float())


def test_ethanol_and_benzene_by_hand() -> None:
    found = read_molecules(["CCO", "not a molecule", "", "c1ccccc1 ", "[Na+].[Cl-]"])
    assert found.row.tolist() == [0, 3, 4] and found.sizes.tolist() == [3, 6, 2]
    assert found.num_bonds.tolist() == [2, 6, 0] and found.bonds[:, :2].tolist() == [[0, 1], [1, 2]]
    sp3 = 4
    assert found.atoms[:3].tolist() == [
        # number, chirality, degree, charge + 5, hydrogens, radicals, hybridization, aromatic, ring
        [6, 0, 4, 5, 3, 0, sp3, 0, 0],
        [6, 0, 4, 5, 2, 0, sp3, 0, 0],
        [8, 0, 2, 5, 1, 0, sp3, 0, 0],
    ]
    assert found.atoms[3].tolist() == [6, 0, 3, 5, 1, 0, 3, 1, 1]
    assert found.atoms[-2:, 3].tolist() == [6, 4], "charges"
    assert found.bond_codes[0].tolist() == [1, 0, 0] and found.bond_codes[2].tolist() == [12, 0, 1]
    assert found.scaffold_names.tolist() == ["", "c1ccccc1"] and found.scaffold.tolist() == [0, 1, 0]


def test_stereo_is_seen() -> None:
    found = read_molecules(["N[C@@H](C)C(=O)O", "N[C@H](C)C(=O)O", "C/C=C/C", "C/C=C\\C"])
    assert sorted([found.atoms[1, 1], found.atoms[7, 1]]) == [1, 2]
    assert found.bond_codes[11, 1] == 3 and found.bond_codes[14, 1] == 2  # E and Z


def test_no_molecules_at_all_are_empty_arrays() -> None:
    found = read_molecules([])
    assert found.atoms.shape == (0, 9) and found.bonds.shape == (2, 0) and found.bond_codes.shape == (0, 3)


CSV = 'iupac,smiles,expt,calc\n"a, b",CCO,-1.5,0\nbad,C(,2,0\nring,c1ccccc1C,,0\n'


def write(root: Path, content: str = CSV) -> Path:
    path = root / "moleculenet/freesolv/raw/SAMPL.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def test_a_small_file_by_hand(tmp_path: Path, no_digests: None) -> None:
    write(tmp_path)
    graphs = FreeSolv().load(tmp_path)
    assert graphs.graph_ids.tolist() == [0, 2], "a row that cannot be parsed is left out"
    assert float(graphs.y[0]) == -1.5 and math.isnan(float(graphs.y[1]))
    assert graphs.edge_index[:, :4].tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert graphs.attributes["scaffold"].tolist() == [0, 1] and graphs.attributes["size"].tolist() == [3, 7]
    assert graphs.attribute_names["scaffold"] == ("", "c1ccccc1") and graphs.class_names == ("expt",)
    assert graphs.x_sizes == tuple(ATOM_FEATURES.values()) and graphs.edge_sizes == tuple(BOND_FEATURES.values())


def test_one_hot_features_have_a_one_for_each_feature(tmp_path: Path, no_digests: None) -> None:
    write(tmp_path)
    codes, columns = FreeSolv().load(tmp_path), FreeSolv(one_hot=True).load(tmp_path)
    assert columns.num_features == sum(ATOM_FEATURES.values()) == 177 and columns.x_sizes == ()
    assert columns.x.sum(dim=1).tolist() == [9.0] * 10
    assert columns.x[:, :119].argmax(dim=1).tolist() == codes.x[:, 0].tolist()
    assert columns.edge_attr is not None and columns.edge_attr.shape[1] == sum(BOND_FEATURES.values()) == 30
    normalized = FreeSolv(one_hot=True, normalize_features=True).load(tmp_path).x
    assert torch.allclose(normalized.sum(dim=1), torch.ones(10))
    with pytest.raises(BadInput, match=r"normalize_features: the features of freesolv are numbers of values"):
        FreeSolv(normalize_features=True).load(tmp_path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", r"has no column 'smiles'; found: "),
        ("iupac,SMILES,expt\n", r"has no column 'smiles'; found: iupac, SMILES, expt"),
        ("iupac,smiles\na,CCO\n", r"has no column 'expt'"),
        ("iupac,smiles,expt,calc\na,CCO,1,0\nb,CC\n", r"SAMPL\.csv, row 3: 2 cells; the header has 4"),
        ("iupac,smiles,expt,calc\na,CCO,high,0\n", r"row 2: .*'high'; a label is a number or empty"),
        ("iupac,smiles,expt,calc\nCCO,a,1,0\n", r"none of 1 SMILES can be parsed"),
    ],
)
def test_files_that_do_not_fit_are_named(tmp_path: Path, no_digests: None, content: str, words: str) -> None:
    write(tmp_path, content)
    with pytest.raises(BadInput, match=words):
        FreeSolv().load(tmp_path)


def kept(own_cache: Path) -> list[Path]:
    return sorted(path for path in own_cache.rglob("*") if path.is_file())


def test_molecules_are_parsed_once_and_nothing_is_written_below_the_root(
    tmp_path: Path, no_digests: None, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    first = FreeSolv().load(tmp_path)
    (path,) = kept(own_cache)
    assert sorted(tmp_path.rglob("*")) == before and path.suffix == ".npz"
    with monkeypatch.context() as patch:
        patch.setattr(module, "read_molecules", lambda smiles: pytest.fail("parsed again"))
        again = FreeSolv().load(tmp_path)
    assert torch.equal(first.x, again.x) and torch.equal(first.edge_index, again.edge_index)
    assert first.attribute_names == again.attribute_names and torch.equal(first.graph_ids, again.graph_ids)


def test_another_file_or_another_rdkit_is_parsed_anew(
    tmp_path: Path, no_digests: None, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    FreeSolv().load(tmp_path)
    write(tmp_path, CSV + "more,CCC,1,0\n")
    assert FreeSolv().load(tmp_path).num_items == 3 and len(kept(own_cache)) == 2
    monkeypatch.setattr(module, "rdkit_version", lambda: "1999.1")
    FreeSolv().load(tmp_path)
    assert len(kept(own_cache)) == 3


@pytest.mark.parametrize("damage", ["cut", "empty", "other"])
def test_damaged_arrays_are_made_anew(tmp_path: Path, no_digests: None, own_cache: Path, damage: str) -> None:
    write(tmp_path)
    expected = FreeSolv().load(tmp_path)
    (path,) = kept(own_cache)
    if damage == "cut":
        os.truncate(path, path.stat().st_size // 2)
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        np.savez(path, something=np.ones(3))
    assert torch.equal(FreeSolv().load(tmp_path).x, expected.x)
    with np.load(path) as archive:
        assert "atoms" in archive.files


def test_without_a_cache_that_can_be_written_nothing_is_kept(
    tmp_path: Path, no_digests: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    blocked = tmp_path / "file"
    blocked.write_text("a file where the folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert FreeSolv().load(tmp_path).num_items == 2


def test_without_rdkit_the_extra_is_named(tmp_path: Path, no_digests: None, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path)
    monkeypatch.setitem(sys.modules, "rdkit", None)
    with pytest.raises(MissingExtra, match=r"rdkit.*isthmus\[molecules\]"):
        FreeSolv().load(tmp_path)


def test_absent_and_damaged_files_are_named(tmp_path: Path) -> None:
    assert not HIV().present(tmp_path)
    with pytest.raises(MissingData, match=r"moleculenet/hiv/raw/HIV\.csv.*Published at moleculenet\.org"):
        HIV().load(tmp_path)
    write(tmp_path)
    with pytest.raises(BadInput, match=r"SAMPL\.csv is damaged or another edition"):
        FreeSolv().load(tmp_path)

"""MoleculeNet: properties of molecules (Wu et al., 2018), from its csv files of SMILES, read by RDKit.

The features are the nine of atoms and three of bonds that the Open Graph Benchmark (Hu et al., 2020) and
torch_geometric use, with torch_geometric's numbering.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from isthmus.core.errors import BadInput, MissingExtra
from isthmus.core.outside import cache_folder
from isthmus.data.features import normalized_rows, one_hot
from isthmus.data.graph import directed
from isthmus.data.graph_set import GraphSet
from isthmus.data.zoo.raw import UNREADABLE, RawDataset, sha256_of, whole_file

CHIRALITY = (
    *("CHI_UNSPECIFIED", "CHI_TETRAHEDRAL_CW", "CHI_TETRAHEDRAL_CCW", "CHI_OTHER", "CHI_TETRAHEDRAL"),
    *("CHI_ALLENE", "CHI_SQUAREPLANAR", "CHI_TRIGONALBIPYRAMIDAL", "CHI_OCTAHEDRAL"),
)
HYBRIDIZATION = ("UNSPECIFIED", "S", "SP", "SP2", "SP3", "SP3D", "SP3D2", "OTHER")
BOND_TYPE = (
    *("UNSPECIFIED", "SINGLE", "DOUBLE", "TRIPLE", "QUADRUPLE", "QUINTUPLE", "HEXTUPLE", "ONEANDAHALF"),
    *("TWOANDAHALF", "THREEANDAHALF", "FOURANDAHALF", "FIVEANDAHALF", "AROMATIC", "IONIC", "HYDROGEN"),
    *("THREECENTER", "DATIVEONE", "DATIVE", "DATIVEL", "DATIVER", "OTHER", "ZERO"),
)
STEREO = ("STEREONONE", "STEREOANY", "STEREOZ", "STEREOE", "STEREOCIS", "STEREOTRANS")
LEAST_CHARGE = -5

# Each feature of an atom with the number of its values: 0 up to one less.
ATOM_FEATURES = {
    "atomic number": 119,
    "chirality": len(CHIRALITY),
    "degree, with hydrogens": 11,
    "formal charge, plus 5": 12,
    "number of hydrogens": 9,
    "number of radical electrons": 5,
    "hybridization": len(HYBRIDIZATION),
    "in an aromatic ring": 2,
    "in a ring": 2,
}
BOND_FEATURES = {"type": len(BOND_TYPE), "stereo": len(STEREO), "conjugated": 2}


@dataclass(frozen=True, eq=False)
class Molecules:
    """Molecules one below the other, as arrays.

    Fields:
        row:            (molecules,), int64; which of the given SMILES each is
        sizes:          (molecules,), int64; number of atoms
        num_bonds:      (molecules,), int64
        atoms:          (atoms, 9), int8; numbers of the values of `ATOM_FEATURES`
        bonds:          (2, bonds), int32; both ends, counted within the molecule; each bond once
        bond_codes:     (bonds, 3), int8; numbers of the values of `BOND_FEATURES`
        scaffold:       (molecules,), int64; number of the Bemis-Murcko scaffold
        scaffold_names: SMILES of the scaffolds, sorted; empty for molecules without a ring
    """

    row: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    num_bonds: npt.NDArray[np.int64]
    atoms: npt.NDArray[np.int8]
    bonds: npt.NDArray[np.int32]
    bond_codes: npt.NDArray[np.int8]
    scaffold: npt.NDArray[np.int64]
    scaffold_names: npt.NDArray[np.str_]


def rdkit_version() -> str:
    """Return the version of RDKit, which decides what can be parsed; raise `MissingExtra` without it."""
    try:
        import rdkit
    except ImportError:
        raise MissingExtra("rdkit", "molecules", "reading molecules") from None
    version: str = rdkit.__version__
    return version


def read_molecules(smiles: Iterable[str]) -> Molecules:
    """Return the molecules that RDKit can parse and that have an atom; the others are left out."""
    rdkit_version()
    from rdkit import Chem, rdBase
    from rdkit.Chem.Scaffolds import MurckoScaffold

    scaffold_of: Any = MurckoScaffold.MurckoScaffoldSmiles  # without annotations
    codes = _Codes(Chem)
    rows, atoms, bonds, bond_codes, scaffolds = [], [], [], [], []
    sizes, num_bonds = [], []
    with rdBase.BlockLogs():  # or it would print what it cannot parse
        for row, text in enumerate(smiles):
            molecule = Chem.MolFromSmiles(text.strip())
            if molecule is None or molecule.GetNumAtoms() == 0:
                continue
            rows.append(row)
            sizes.append(molecule.GetNumAtoms())
            num_bonds.append(molecule.GetNumBonds())
            atoms += [codes.atom(atom) for atom in molecule.GetAtoms()]
            for bond in molecule.GetBonds():
                bonds.append((bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()))
                bond_codes.append(codes.bond(bond))
            scaffolds.append(scaffold_of(mol=molecule))
    names, scaffold = np.unique(np.array(scaffolds, dtype=np.str_), return_inverse=True)
    return Molecules(
        row=np.array(rows, dtype=np.int64),
        sizes=np.array(sizes, dtype=np.int64),
        num_bonds=np.array(num_bonds, dtype=np.int64),
        atoms=np.array(atoms, dtype=np.int8).reshape(-1, len(ATOM_FEATURES)),
        bonds=np.array(bonds, dtype=np.int32).reshape(-1, 2).T,
        bond_codes=np.array(bond_codes, dtype=np.int8).reshape(-1, len(BOND_FEATURES)),
        scaffold=scaffold.astype(np.int64),
        scaffold_names=names,
    )


class _Codes:
    """Numbers of RDKit's named values; a value that is not in the lists counts as "other", or as unspecified."""

    def __init__(self, chem: Any) -> None:
        self.chirality = _numbers(chem.ChiralType, CHIRALITY, "CHI_OTHER")
        self.hybridization = _numbers(chem.HybridizationType, HYBRIDIZATION, "OTHER")
        self.bond_type = _numbers(chem.BondType, BOND_TYPE, "OTHER")
        self.stereo = _numbers(chem.BondStereo, STEREO, "STEREOANY")

    def atom(self, atom: Any) -> tuple[int, ...]:
        charge = atom.GetFormalCharge() - LEAST_CHARGE
        return (
            atom.GetAtomicNum(),
            self.chirality[atom.GetChiralTag()],
            min(atom.GetTotalDegree(), ATOM_FEATURES["degree, with hydrogens"] - 1),
            min(max(charge, 0), ATOM_FEATURES["formal charge, plus 5"] - 1),
            min(atom.GetTotalNumHs(), ATOM_FEATURES["number of hydrogens"] - 1),
            min(atom.GetNumRadicalElectrons(), ATOM_FEATURES["number of radical electrons"] - 1),
            self.hybridization[atom.GetHybridization()],
            int(atom.GetIsAromatic()),
            int(atom.IsInRing()),
        )

    def bond(self, bond: Any) -> tuple[int, ...]:
        return (self.bond_type[bond.GetBondType()], self.stereo[bond.GetStereo()], int(bond.GetIsConjugated()))


def _numbers(enumeration: Any, names: tuple[str, ...], other: str) -> dict[Any, int]:
    return {value: names.index(name if name in names else other) for name, value in enumeration.names.items()}


# Part of the name of kept files: raise it whenever `Molecules` or what fills it changes.
EDITION = 1


@dataclass(frozen=True)
class MoleculeNet(RawDataset):
    """Molecules with one or more properties each, at `root/moleculenet/<name>/raw/<name>.csv`; needs RDKit.

    Atoms and bonds have the features of the Open Graph Benchmark, as numbers of values, one column each:

        atoms: atomic number, chirality, degree with hydrogens, formal charge plus 5, number of hydrogens, number of
               radical electrons, hybridization, in an aromatic ring, in a ring
        bonds: type, stereo, conjugated

    `x_sizes` and `edge_sizes` say how many values each has, for embeddings. Labels are (graphs, tasks), NaN where a
    property was not measured. Attributes of each molecule: "scaffold", the number of its Bemis-Murcko scaffold among
    the sorted SMILES of all scaffolds (named in `attribute_names`; "" for molecules without a ring), and "size", its
    number of atoms. Rows whose SMILES RDKit cannot parse are left out; `graph_ids` are the rows of the csv file that
    stay. There is no official split: OGB's is by scaffold.

    Parsing HIV takes most of a minute, so the arrays are kept in the user's cache folder, under the digest of the csv
    file and the version of RDKit. Nothing is written below `root`; without a cache that can be written, nothing is
    kept.

    Fields:
        one_hot: whether atoms and bonds have one column for each value of each feature (177 and 30), for models
                 whose first layer is linear
    """

    task = "graph"
    licence = "MIT (MoleculeNet); for research, cite Wu et al. (2018)"
    published: ClassVar[str] = "moleculenet.org/datasets-1 (deepchemdata.s3-us-west-1.amazonaws.com/datasets/)"
    file: ClassVar[str] = ""  # where it is not called <name>.csv
    smiles: ClassVar[str] = "smiles"
    target: ClassVar[str] = "binary"
    tasks: ClassVar[tuple[str, ...]] = ()  # columns of the csv file; empty: all but the SMILES

    one_hot: bool = False

    def __init_subclass__(cls) -> None:
        cls.name = cls.__name__.lower()

    @property
    def needs(self) -> tuple[str, ...]:
        """The file of this set."""
        return (f"moleculenet/{self.name}/raw/{self.file or f'{self.name}.csv'}",)

    def load(self, root: Path) -> GraphSet:
        """Return the molecules; their file is looked for in `root`."""
        check_scale(self.name, self.one_hot, self.normalize_features)
        (path,) = self.verified(root)
        smiles, labels, tasks = read_table(path, self.smiles, self.tasks)
        found = kept_molecules(path, self.name, smiles)
        graphs = as_graphs(found, labels, tasks, self.target, self.name)
        return in_columns(graphs, self.normalize_features) if self.one_hot else graphs


def check_scale(name: str, columns: bool, normalize: bool) -> None:
    """Raise `BadInput` when numbers of values are to be normalized."""
    if normalize and not columns:
        raise BadInput(
            f"dataset.normalize_features: the features of {name} are numbers of values, which have no scale; set "
            "dataset.one_hot as well, or leave it off"
        )


def read_table(
    path: Path, smiles: str, tasks: Sequence[str]
) -> tuple[list[str], npt.NDArray[np.float32], tuple[str, ...]]:
    """Return the SMILES of a csv file, the columns of tasks (rows, tasks) with NaN for empty, and their names."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(filter(None, csv.reader(file)))
    header = rows[0] if rows else []
    names = tuple(tasks or (name for name in header if name != smiles))
    missing = [name for name in (smiles, *names) if name not in header]
    if missing:
        raise BadInput(f"the file {path} has no column {missing[0]!r}; found: {', '.join(header)}")
    labels, place = _labels(path, rows, names), header.index(smiles)
    return [row[place] for row in rows[1:]], labels, names


def _labels(path: Path, rows: list[list[str]], names: Sequence[str]) -> npt.NDArray[np.float32]:
    """Return columns of a table as numbers, (rows without the header, names), NaN where a cell is empty."""
    header = rows[0]
    places = [header.index(name) for name in names]
    labels = np.full((len(rows) - 1, len(names)), np.nan, dtype=np.float32)
    for number, row in enumerate(rows[1:]):
        if len(row) != len(header):
            raise BadInput(f"the file {path}, row {number + 2}: {len(row)} cells; the header has {len(header)}")
        try:
            labels[number] = [float(row[column]) if row[column].strip() else np.nan for column in places]
        except ValueError as error:
            raise BadInput(f"the file {path}, row {number + 2}: {error}; a label is a number or empty") from None
    return labels


def as_graphs(
    found: Molecules, labels: npt.NDArray[np.float32], tasks: tuple[str, ...], target: str, name: str
) -> GraphSet:
    """Return molecules with the labels of their rows as a set of graphs."""
    first = np.concatenate([[0], np.cumsum(found.sizes)])
    ends = torch.from_numpy(found.bonds.astype(np.int64) + np.repeat(first[:-1], found.num_bonds))  # (2, bonds)
    number = torch.arange(ends.shape[1])
    both = torch.cat([ends, ends.flip(0)], dim=1)
    edge_index, bond = directed(both, int(first[-1]), torch.cat([number, number]))
    assert bond is not None
    return GraphSet(
        x=torch.from_numpy(found.atoms.astype(np.float32)),
        edge_index=edge_index,
        node_start=torch.from_numpy(first),
        y=torch.from_numpy(labels[found.row]),
        num_classes=len(tasks),
        target=target,
        graph_ids=torch.from_numpy(found.row),
        edge_attr=torch.from_numpy(found.bond_codes[bond.numpy()].astype(np.float32)),
        x_sizes=tuple(ATOM_FEATURES.values()),
        edge_sizes=tuple(BOND_FEATURES.values()),
        attributes={"scaffold": torch.from_numpy(found.scaffold), "size": torch.from_numpy(found.sizes)},
        attribute_names={"scaffold": tuple(found.scaffold_names.tolist())},
        class_names=tasks,
        name=name,
    )


def in_columns(graphs: GraphSet, normalize: bool = False) -> GraphSet:
    """Return graphs whose features are numbers of values with a column for each value instead."""
    assert graphs.edge_attr is not None
    x = one_hot(graphs.x.numpy().astype(np.int64), graphs.x_sizes)
    edge_attr = one_hot(graphs.edge_attr.numpy().astype(np.int64), graphs.edge_sizes).to_dense()
    x = normalized_rows(x) if normalize else x
    return replace(graphs, x=x, edge_attr=edge_attr, x_sizes=(), edge_sizes=())


def kept_molecules(path: Path, name: str, smiles: Sequence[str]) -> Molecules:
    """Return the molecules of a csv file, from the user's cache folder when they have been read before."""
    key = f"{sha256_of(path)[:16]}-rdkit-{rdkit_version()}-{EDITION}.npz"
    kept = cache_folder() / "moleculenet" / name / "processed" / key
    found = _read_kept(kept)
    if found is None:
        found = read_molecules(smiles)
        if smiles and len(found.row) == 0:
            raise BadInput(f"none of {len(smiles)} SMILES can be parsed; is the column of SMILES the right one?")
        _keep(kept, found)
    return found


def _read_kept(path: Path) -> Molecules | None:
    """Return what was kept, or None when it is absent or damaged."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return Molecules(**{key: archive[key] for key in archive.files})
    except (*UNREADABLE, TypeError):
        return None


def _keep(path: Path, found: Molecules) -> None:
    """Write the arrays so that other processes see them whole or not at all; do nothing where that cannot be."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **vars(found))


class HIV(MoleculeNet):
    """41,120 molecules (7 of 41,127 cannot be parsed): those that keep HIV from replicating."""

    file = "HIV.csv"
    tasks = ("HIV_active",)


class BACE(MoleculeNet):
    """1,513 molecules: those that inhibit human beta-secretase 1."""

    smiles = "mol"
    tasks = ("Class",)


class BBBP(MoleculeNet):
    """2,039 molecules (11 of 2,050 cannot be parsed): those that pass from blood into the brain."""

    file = "BBBP.csv"
    tasks = ("BBBP",)


class ClinTox(MoleculeNet):
    """1,480 drugs (4 of 1,484 cannot be parsed), 2 tasks: approved by the FDA; failed in trials for toxicity."""

    tasks = ("FDA_APPROVED", "CT_TOX")


class SIDER(MoleculeNet):
    """1,427 drugs, 27 tasks: side effects on each system of organs."""


class Tox21(MoleculeNet):
    """7,823 molecules (8 of 7,831 cannot be parsed), 12 tasks: toxicity measurements, some missing."""

    tasks = (
        *("NR-AR", "NR-AR-LBD", "NR-AhR", "NR-Aromatase", "NR-ER", "NR-ER-LBD", "NR-PPAR-gamma"),
        *("SR-ARE", "SR-ATAD5", "SR-HSE", "SR-MMP", "SR-p53"),
    )


class ESOL(MoleculeNet):
    """1,128 molecules: logarithm of the solubility in water, in mols per litre."""

    file = "delaney-processed.csv"
    target = "value"
    tasks = ("measured log solubility in mols per litre",)


class Lipo(MoleculeNet):
    """4,200 molecules: lipophilicity, the logarithm of the octanol/water distribution at pH 7.4."""

    file = "Lipophilicity.csv"
    target = "value"
    tasks = ("exp",)


class FreeSolv(MoleculeNet):
    """642 molecules: free energy of hydration, measured, in kcal/mol."""

    file = "SAMPL.csv"
    target = "value"
    tasks = ("expt",)

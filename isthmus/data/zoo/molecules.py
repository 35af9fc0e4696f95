"""Molecules from SMILES: atoms, bonds and scaffolds in numbers, by RDKit.

The features are the nine of atoms and three of bonds that the Open Graph Benchmark (Hu et al., 2020) and
torch_geometric use, with torch_geometric's numbering.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from isthmus.core.errors import MissingExtra

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
        return (
            self.bond_type[bond.GetBondType()],
            self.stereo[bond.GetStereo()],
            int(bond.GetIsConjugated()),
        )


def _numbers(enumeration: Any, names: tuple[str, ...], other: str) -> dict[Any, int]:
    return {value: names.index(name if name in names else other) for name, value in enumeration.names.items()}

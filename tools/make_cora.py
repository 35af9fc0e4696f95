"""Make the Cora file that ships with the package, from the copy inside the wheel `graphdatascience`.

    pip download --no-deps graphdatascience==2.2
    python tools/make_cora.py graphdatascience-2.2-py3-none-any.whl --planetoid DATA/planetoid/Cora/raw

The wheel holds the papers, words, subjects and citations of Cora. The raw Planetoid files (`ind.cora.*`)
hold the same graph under other node numbers, and the public fixed split. With them, the nodes are matched,
the match is checked to be an isomorphism, and the file gets Planetoid's node and class numbers and its split.
Without them, the nodes stay in the order of the wheel and there is no split. The same input gives the same
bytes.

Planetoid files are pickles: give only files that you trust.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import pickle
import sys
import warnings
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]

FOLDER = "graphdatascience/resources/cora"
TABLES = ("cora_nodes.parquet.gzip", "cora_rels.parquet.gzip")
TARGET = Path(__file__).resolve().parent.parent / "isthmus" / "data" / "zoo" / "files"
NUM_NODES, NUM_CITATIONS, NUM_UNDIRECTED, NUM_FEATURES = 2708, 5429, 5278, 1433
SPLIT_SIZES = {"train": 140, "val": 500, "test": 1000}
# The wheel's own numbers of the subjects, from the script that it ships beside the tables.
WHEEL_SUBJECTS = (
    "Neural_Networks",
    "Rule_Learning",
    "Reinforcement_Learning",
    "Probabilistic_Methods",
    "Theory",
    "Genetic_Algorithms",
    "Case_Based",
)
# Planetoid's numbers, so that a class has the number it has in everybody's results; the match checks them.
CLASS_NAMES = (
    "Theory",
    "Reinforcement_Learning",
    "Genetic_Algorithms",
    "Neural_Networks",
    "Probabilistic_Methods",
    "Case_Based",
    "Rule_Learning",
)


@dataclass(frozen=True)
class Citations:
    """Cora: binary words (nodes, features), class numbers (nodes,), citations (citations, 2)."""

    words: npt.NDArray[np.bool_]
    labels: Integers
    citations: Integers
    paper_ids: Integers

    def pairs(self) -> Integers:
        """Return the undirected edges, (pairs, 2), each once, smaller end first, sorted."""
        pairs = np.unique(np.sort(self.citations, axis=1), axis=0)
        distinct: Integers = pairs[pairs[:, 0] != pairs[:, 1]]
        return distinct


def check(holds: bool, message: str) -> None:
    """End the script with a message unless the fact holds."""
    if not holds:
        sys.exit(f"make_cora: {message}")


def read_wheel(source: Path) -> dict[str, bytes]:
    """Return the bytes of both tables from a wheel, an unpacked wheel, or the folder of the tables itself."""
    if source.is_file():
        with zipfile.ZipFile(source) as wheel:
            return {name: wheel.read(f"{FOLDER}/{name}") for name in TABLES}
    for folder in (source, source / FOLDER):
        if all((folder / name).is_file() for name in TABLES):
            return {name: (folder / name).read_bytes() for name in TABLES}
    sys.exit(f"make_cora: no {' and '.join(TABLES)} in {str(source)!r}; see --help for how to get the wheel")


def parse_tables(tables: dict[str, bytes]) -> Citations:
    """Return the graph of the wheel, nodes in its order, and check all counts."""
    import pandas as pd

    nodes, cites = (pd.read_parquet(io.BytesIO(tables[name])) for name in TABLES)
    paper_ids = nodes["nodeId"].to_numpy(np.int64)
    words = np.stack(nodes["features"].to_list())
    position = pd.Index(paper_ids)
    ends = [position.get_indexer(pd.Index(cites[column])) for column in ("sourceNodeId", "targetNodeId")]
    numbers = np.array([CLASS_NAMES.index(name) for name in WHEEL_SUBJECTS])
    graph = Citations(words.astype(bool), numbers[nodes["subject"]], np.stack(ends, axis=1).astype(np.int64), paper_ids)
    check(words.shape == (NUM_NODES, NUM_FEATURES), f"features are {words.shape}")
    check(bool(np.isin(words, (0, 1)).all()), "features are not binary")
    check(len(np.unique(paper_ids)) == NUM_NODES, "paper ids repeat")
    check(graph.citations.shape == (NUM_CITATIONS, 2), f"citations are {graph.citations.shape}")
    check(bool((graph.citations >= 0).all()), "a citation names an unknown paper")
    check(len(graph.pairs()) == NUM_UNDIRECTED, f"{len(graph.pairs())} undirected edges")
    check(len(np.unique(graph.labels)) == len(CLASS_NAMES), "not every class occurs")
    return graph


def read_planetoid(folder: Path) -> tuple[Citations, dict[str, Integers]]:
    """Return Planetoid's graph and its public split."""
    parts = {}
    for name in ("tx", "allx", "y", "ty", "ally", "graph"):
        # The pickles name a module of scipy that has moved since.
        with (folder / f"ind.cora.{name}").open("rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            parts[name] = pickle.load(file, encoding="latin1")
    test = np.loadtxt(folder / "ind.cora.test.index", dtype=np.int64)
    words = np.concatenate([parts["allx"].toarray(), parts["tx"].toarray()])
    labels = np.concatenate([parts["ally"], parts["ty"]]).argmax(axis=1)
    # Row i of tx and ty describes node test[i].
    first = len(parts["ally"])
    words[test], labels[test] = words[first:].copy(), labels[first:].copy()
    cites = np.array([(node, other) for node, others in parts["graph"].items() for other in others])
    check(bool(np.isin(words, (0, 1)).all()), "Planetoid's features are not binary")
    num_train = len(parts["y"])
    split = {
        "train": np.arange(num_train),
        "val": np.arange(num_train, num_train + SPLIT_SIZES["val"]),
        "test": np.sort(test),
    }
    return Citations(words.astype(bool), labels.astype(np.int64), cites, np.arange(len(words))), split


def match(ours: Citations, theirs: Citations) -> Integers:
    """Return the node of `ours` for each node of `theirs`, or end the script when the graphs differ.

    Colour refinement over both graphs at once: a node's first colour is its words and class, its next one its
    colour with those of its neighbours. Nodes that stay alike in every respect are told apart one at a
    time.
    """
    num_nodes = len(ours.words)
    pairs = np.concatenate([ours.pairs(), theirs.pairs() + num_nodes])
    ends = np.concatenate([pairs, pairs[:, ::-1]])
    neighbours: list[list[int]] = [[] for _ in range(2 * num_nodes)]
    for node, other in ends.tolist():
        neighbours[node].append(other)
    words = np.concatenate([ours.words, theirs.words])
    labels = np.concatenate([ours.labels, theirs.labels])
    colours = _numbered([(row.tobytes(), label) for row, label in zip(words, labels.tolist(), strict=True)])
    while True:
        finer = _numbered(
            [(colours[node], *sorted(colours[other] for other in around)) for node, around in enumerate(neighbours)]
        )
        if len(set(finer)) > len(set(colours)):
            colours = finer
            continue
        left, right = np.array(colours[:num_nodes]), np.array(colours[num_nodes:])
        check(bool((np.sort(left) == np.sort(right)).all()), "the graphs are not the same up to node numbers")
        values, counts = np.unique(left, return_counts=True)
        if counts.max() == 1:
            break
        twin = values[counts > 1][0]
        for side, offset in ((left, 0), (right, num_nodes)):
            colours[int(np.flatnonzero(side == twin)[0]) + offset] = -1
        colours = _numbered([(colour,) for colour in colours])
    return np.argsort(left)[np.argsort(np.argsort(right))]


def _numbered(keys: list[tuple[object, ...]]) -> list[int]:
    numbers: dict[tuple[object, ...], int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def reorder(graph: Citations, order: Integers) -> Citations:
    """Return the graph with node order[i] as node i; citations sorted."""
    position = np.argsort(order)
    citations = position[graph.citations]
    citations = citations[np.lexsort((citations[:, 1], citations[:, 0]))]
    return replace(
        graph,
        words=graph.words[order],
        labels=graph.labels[order],
        citations=citations,
        paper_ids=graph.paper_ids[order],
    )


def check_same(ours: Citations, theirs: Citations, split: dict[str, Integers]) -> None:
    """End the script unless both are equal node by node, and the split is the public one."""
    check(bool((ours.words == theirs.words).all()), "matched nodes differ in words")
    check(bool((ours.labels == theirs.labels).all()), "matched nodes differ in class")
    check(bool(np.array_equal(ours.pairs(), theirs.pairs())), "matched nodes differ in edges")
    sizes = {name: len(nodes) for name, nodes in split.items()}
    check(sizes == SPLIT_SIZES, f"the split has {sizes} nodes")
    check(len(np.unique(np.concatenate(list(split.values())))) == sum(sizes.values()), "the split overlaps")


def write(graph: Citations, split: dict[str, Integers], target: Path) -> bytes:
    """Write the archive in the smallest integer types, without pickles, and return its bytes."""
    rows, columns = np.nonzero(graph.words)
    arrays: dict[str, Any] = {
        "feature_indptr": np.searchsorted(rows, np.arange(NUM_NODES + 1)).astype(np.uint16),
        "feature_indices": columns.astype(np.uint16),
        "num_features": np.uint16(NUM_FEATURES),
        "citations": graph.citations.astype(np.uint16),
        "labels": graph.labels.astype(np.uint8),
        "class_names": np.array(CLASS_NAMES),
        "paper_ids": graph.paper_ids.astype(np.uint32),
        **{name: nodes.astype(np.uint16) for name, nodes in split.items()},
    }
    check(len(rows) < 2**16 and int(graph.paper_ids.max()) < 2**32, "a number does not fit its type")
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    target.mkdir(parents=True, exist_ok=True)
    (target / "cora.npz").write_bytes(buffer.getvalue())
    return buffer.getvalue()


README = """# cora.npz

Cora: {nodes} machine learning papers, {classes} classes, {citations} citations, {features} binary features.

Made by `tools/make_cora.py` from the tables in the Python wheel `graphdatascience` 2.2 (Neo4j), licence
Apache-2.0, folder `{folder}`:

| file | SHA-256 |
| --- | --- |
{digests}

{split}

| array | what it is |
| --- | --- |
| `feature_indptr`, `feature_indices`, `num_features` | the words of each paper: rows of a binary CSR matrix |
| `citations` | (citations, 2) node indices: cited paper, citing paper; sorted; directed, as published |
| `labels`, `class_names` | class of each paper |
| `paper_ids` | the papers' original numbers |
| `train`, `val`, `test` | node indices of the public split |

The dataset was published by McCallum, Nigam, Rennie and Seymore (2000) and, in this form, by Sen, Namata,
Bilgic, Getoor, Gallagher and Eliassi-Rad (2008), "Collective classification in network data".
"""
WITH_SPLIT = """\
Nodes, classes and the public fixed split (140 / 500 / 1000) are numbered as in Planetoid (Yang, Cohen and
Salakhutdinov, 2016, "Revisiting semi-supervised learning with graph embeddings"). The nodes of both copies
were matched by words, class and citations, and the match was checked: equal words, equal classes, equal
undirected edges, node by node. A few papers have the same words, class and neighbours as another; which of
their numbers in `paper_ids` is whose cannot be told."""
WITHOUT_SPLIT = "Nodes are in the order of the wheel. There is no split."


def write_readme(target: Path, tables: dict[str, bytes], archive: bytes, has_split: bool) -> None:
    """Write where the archive comes from, beside it."""
    files = {**tables, "cora.npz (the result)": archive}
    text = README.format(
        nodes=NUM_NODES,
        classes=len(CLASS_NAMES),
        citations=NUM_CITATIONS,
        features=NUM_FEATURES,
        folder=FOLDER,
        digests="\n".join(f"| {name} | `{hashlib.sha256(data).hexdigest()}` |" for name, data in files.items()),
        split=WITH_SPLIT if has_split else WITHOUT_SPLIT,
    )
    (target / "cora.README.md").write_text(text, encoding="utf-8")


def main() -> None:
    """Read the arguments, make the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="the wheel graphdatascience 2.2, or a folder it is unpacked in")
    parser.add_argument("--planetoid", type=Path, help="folder with the raw files ind.cora.*")
    parser.add_argument("--target", type=Path, default=TARGET, help="where to write (default: into the package)")
    arguments = parser.parse_args()
    tables = read_wheel(arguments.source)
    graph = parse_tables(tables)
    split: dict[str, Integers] = {}
    order = np.arange(NUM_NODES)
    if arguments.planetoid is not None:
        theirs, split = read_planetoid(arguments.planetoid)
        order = match(graph, theirs)
        check_same(reorder(graph, order), theirs, split)
    archive = write(reorder(graph, order), split, arguments.target)
    write_readme(arguments.target, tables, archive, bool(split))
    print(f"{arguments.target / 'cora.npz'}: {len(archive)} bytes, sha256 {hashlib.sha256(archive).hexdigest()}")


if __name__ == "__main__":
    main()

"""Load every dataset that is present and write what was found beside what the papers say.

    python tools/dataset_table.py --data-root DATA --out docs/datasets.md

Datasets that are absent are listed as such. Molecules need `isthmus[molecules]`; the first time, HIV takes a minute.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from isthmus.core.errors import IsthmusError
from isthmus.data.dividing import Holding
from isthmus.data.folders.own_folder import OwnFolder
from isthmus.data.graph import Graph, count_pairs
from isthmus.data.graph_set import GraphSet
from isthmus.data.link_graph import LinkGraph
from isthmus.data.zoo import DATASETS

# ruff: noqa: E501
# (nodes or graphs, edges, features, classes) as printed; None where the paper says nothing.
PAPERS: dict[str, tuple[tuple[str, str | None, str | None, str | None], str, str]] = {
    "cora": (("2,708", "5,429", "1,433", "7"), "FedGL, FGSSL, FS-G", "151 duplicate links"),
    "citeseer": (("3,327", "4,732", "3,703", "6"), "FedGL, FGSSL", "repeated links and 124 self-loops; FS-G prints 4,230 / 5,358, another edition"),
    "pubmed": (("19,717", "44,338", "500", "3"), "FGSSL, FS-G", "11 repeated links and 3 self-loops; FS-G prints 5 classes"),
    "wiki": (("2,405", "17,981", "4,973", "17"), "FedGL", "the paper counts lines: with 1,996 self-loops, repeats and both directions"),
    "acm": (("3,025", "13,128", "1,870", "3"), "FedGL", ""),
    "twitch": (("34,118", "429,113", None, "2"), "FedGRL, Table 1, summed over six countries", ""),
    "wn18": (("40,943", "151,442", None, "18"), "FS-G, Table 6", ""),
    "fb15k_237": (("14,541", "310,116", None, "237"), "FS-G, Table 6", ""),
    "ciao": (("164,519", "565,300", None, "6"), "FS-G, Table 6: 28 x 5,875.68 nodes and 28 x 20,189.29 edges", "it seems to count nodes once for each category, and edges both ways"),
    "links_of": ((None, None, None, None), "as it is by default, of `cora`", ""),
    "hiv": (("41,127", "54.93", None, "2"), "FS-G, Table 6; edges are the mean over graphs, in both directions", "7 molecules that RDKit does not read are left out"),
    "proteins": (("1,113", "145.63", None, "2"), "FS-G, Table 6, likewise", ""),
    "imdb_binary": (("1,000", "193.06", None, "2"), "FS-G, Table 6, likewise", ""),
    "multi_task_mol": (("18,661", "1,466.83", None, None), "FS-G, Table 6, likewise", "the paper does not name its sets; ours are the seven of the authors' code"),
}  # fmt: skip


def counts(data: Holding) -> tuple[str, str, str, str]:
    """Return items, edges, features and classes as text."""
    if isinstance(data, GraphSet):
        return (
            f"{data.num_items:,}",
            f"{data.num_edges / data.num_items:,.2f}",
            _n(data.num_features),
            _n(data.num_classes),
        )
    if isinstance(data, LinkGraph):
        return _n(data.num_nodes), _n(data.num_items), _n(data.num_features), _n(data.num_classes)
    assert isinstance(data, Graph)
    return _n(data.num_nodes), _n(count_pairs(data)), _n(data.num_features), _n(data.num_classes)


def _n(number: int) -> str:
    return f"{number:,}"


def rows(root: Path) -> list[str]:
    """Return the lines of the table."""
    lines = []
    for name, kind in DATASETS.items():
        dataset = kind()
        own = isinstance(dataset, OwnFolder)
        if own or not dataset.present(root):
            if not own:
                lines.append(f"| `{name}` | {kind.task} | not present here | | | | |")
            continue
        started = time.perf_counter()
        try:
            found = counts(dataset.load(root))
        except IsthmusError as error:
            lines.append(f"| `{name}` | {kind.task} | {error} | | | | |")
            continue
        print(f"{name}: {time.perf_counter() - started:.1f} s", flush=True)
        printed, source, why = PAPERS.get(name, ((None, None, None, None), "", ""))
        cells = [
            f"{ours} ({theirs})" if theirs and theirs != ours else ours
            for ours, theirs in zip(found, printed, strict=True)
        ]
        lines.append(
            f"| `{name}` | {kind.task} | {' | '.join(cells)} | {source}{'; ' if source and why else ''}{why} |"
        )
    return lines


HEAD = """# Datasets

Written by `python tools/dataset_table.py --data-root DATA --out docs/datasets.md`. A number in brackets is the paper's, where
it differs from what was found. Nodes are those of the whole dataset; for sets of graphs the first number counts graphs.
Edges of node datasets are undirected pairs without self-loops, of link datasets links, of sets of graphs the mean
number of directed edges of a graph.

Files are looked for under `--data-root` or `ISTHMUS_DATA` and verified by digest (`isthmus/data/zoo/files/SHA256SUMS`);
`isthmus list datasets` says which are present, and their licences. Synthetic sets are drawn from their `graph_seed`.

| name | task | nodes or graphs | edges | features | classes | in the papers |
| --- | --- | --- | --- | --- | --- | --- |
"""


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    chosen.out.write_text(HEAD + "\n".join(rows(chosen.data_root)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

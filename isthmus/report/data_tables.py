"""Tables of who holds what, from the plain numbers of a survey."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from isthmus.report.summary import Table

MAX_CLIENTS = 20
MAX_LABELS = 10

Figures = Mapping[str, Any]
MEASURES = {
    "label_kl": "labels: KL divergence (bits)",
    "label_js": "labels: Jensen-Shannon divergence (0 to 1)",
    "walk_distance_4": "structure: distance of anonymous walks, 4 steps (0 to 1)",
    "walk_distance_5": "structure: distance of anonymous walks, 5 steps (0 to 1)",
}


def clients_table(facts: Figures, limit: int | None = MAX_CLIENTS) -> Table:
    """Return one row per client, their mean, and the whole; of more than `limit` the first and the extremes."""
    columns = _columns(facts)
    clients: dict[str, Figures] = facts["clients"]
    shown = list(clients.items())[:limit]
    rows = [(name, *(show(figures[key]) for _, key, show in columns)) for name, figures in shown]
    mean: Callable[[list[float]], float] = lambda values: sum(values) / len(values)  # noqa: E731
    folds = [(f"mean of {len(clients)}", mean)]
    if len(shown) < len(clients):
        rows.append((f"... {len(clients) - len(shown)} more", *("" for _ in columns)))
        folds += [(f"least of {len(clients)}", min), (f"most of {len(clients)}", max)]
    for title, fold in folds:
        rows.append((title, *_folded(columns, clients.values(), fold)))
    rows.append(("whole", *(show(facts["whole"][key]) for _, key, show in columns)))
    return Table(("client", *(title for title, _, _ in columns)), tuple(rows))


_Column = tuple[str, str, Callable[[float | None], str]]  # title, key, and how a value is shown


def _columns(facts: Figures) -> list[_Column]:
    item = facts["item"]
    everyone = [facts["whole"], *facts["clients"].values()]
    columns: list[_Column] = [(f"{item}s", "num_items", count)]
    if item == "pair":
        columns.append(("links", "num_links", count))
    if item != "node":
        columns.append(("nodes", "num_nodes", count))
    columns += [("edges", "num_edges", count), ("features", "num_features", count)]
    columns.append((f"classes of {len(facts['label_names'])}", "num_classes", count))
    columns += [(split, f"num_{split}", count) for split in ("train", "val", "test")]
    columns.append(("mean degree", "mean_degree", lambda value: number(value, 2)))
    if any(figures["homophily"] is not None for figures in everyone):
        columns.append(("homophily", "homophily", lambda value: number(value, 3)))
    return columns


def _folded(
    columns: Sequence[_Column], clients: Iterable[Figures], fold: Callable[[list[float]], float]
) -> tuple[str, ...]:
    cells = []
    for _, key, show in columns:
        values = [figures[key] for figures in clients if figures[key] is not None]
        found = fold(values) if values else None
        cells.append(number(found, 1) if show is count and found is not None and found != int(found) else show(found))
    return tuple(cells)


def labels_table(facts: Figures, limit: int | None = MAX_CLIENTS, max_labels: int = MAX_LABELS) -> Table:
    """Return how many labels of each class a client has; of more than `max_labels`, the most common and the others."""
    names: list[str] = facts["label_names"]
    chosen = common_labels(facts["whole"]["label_counts"], max_labels)
    rest = len(names) - len(chosen)
    rows = []
    for name, figures in [*list(facts["clients"].items())[:limit], ("whole", facts["whole"])]:
        counts = figures["label_counts"]
        cells = [sum(counts), *(counts[label] for label in chosen)]
        others = [sum(counts) - sum(counts[label] for label in chosen)] if rest else []
        rows.append((name, *map(count, [*cells, *others])))
    titles = ("client", "labels", *(names[label] for label in chosen), *([f"{rest} others"] if rest else []))
    return Table(titles, tuple(rows))


def common_labels(counts: Sequence[int], limit: int) -> list[int]:
    """Return the `limit` labels that the whole has most of, in the order of their numbers."""
    return sorted(sorted(range(len(counts)), key=lambda label: (-counts[label], label))[:limit])


def overlap_table(
    names: Sequence[str], matrix: Sequence[Sequence[int]], limit: int | None = MAX_CLIENTS
) -> Table | None:
    """Return what each two clients share, or None where no two share anything."""
    if not largest_overlap(matrix):
        return None
    shown = range(len(names))[:limit]
    rows = tuple((names[i], *(count(matrix[i][j]) for j in shown)) for i in shown)
    return Table(("client", *(names[j] for j in shown)), rows)


def largest_overlap(matrix: Sequence[Sequence[int]]) -> int:
    """Return the most that two different clients share."""
    return max((value for i, row in enumerate(matrix) for j, value in enumerate(row) if i != j), default=0)


def heterogeneity_table(facts: Figures) -> Table:
    """Return one row per measure: mean and largest between clients, and from a client to the whole."""
    keys = ("mean", "max", "mean_to_whole", "max_to_whole")
    rows = tuple(
        (title, *(number(facts["heterogeneity"][name][key], 4) for key in keys)) for name, title in MEASURES.items()
    )
    return Table(("measure", "between clients, mean", "most", "to the whole, mean", "most"), rows)


def losses(facts: Figures) -> list[str]:
    """Return what no client holds, and whether clients share anything, in sentences."""
    item = facts["item"]
    lines = []
    if facts["missing_edge_fraction"] is not None:
        lines.append(f"{percent(facts['missing_edge_fraction'])} of the edges are held by no client")
    if facts["missing_item_fraction"] > 0:
        lines.append(f"{percent(facts['missing_item_fraction'])} of the {item}s are held by no client")
    if not largest_overlap(facts["overlap"]):
        lines.append(f"no two clients share a {item}")
    return lines


def count(value: float | None) -> str:
    """Return 1234 as "1,234", and "-" for None."""
    return "-" if value is None else f"{round(value):,}"


def number(value: float | None, digits: int) -> str:
    """Return a number with so many digits behind the point, and "-" for None."""
    return "-" if value is None else f"{value:,.{digits}f}"


def percent(value: float) -> str:
    """Return 0.1234 as "12.3 %"."""
    return f"{100 * value:.1f} %"

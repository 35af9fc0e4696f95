"""A graph from a GraphML or GEXF file, read by networkx."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError

from isthmus.core.errors import nearest
from isthmus.data.folders.tables.reading import Problems, RawGraph, Table, as_column

KINDS = {".graphml": "GraphML", ".gexf": "GEXF"}


def read_network(path: Path, id_attribute: str, label_attribute: str, problems: Problems) -> RawGraph | None:
    """Return the graph in a file, or None after noting why it cannot be read.

    The nodes' attributes are columns beside `id`, the edges' beside `source` and `target`. A node is known by its id in
    the file, or by `id_attribute` if that is given. GEXF calls the name that a picture shows `label`: it is left
    out unless it is the `label_attribute`.
    """
    graph = _read(path, problems)
    if graph is None:
        return None
    nodes, edges = dict(graph.nodes(data=True)), list(graph.edges(data=True))
    attributes = _names(nodes.values())
    if id_attribute not in ("", "id", *attributes):
        problems.add(path.name, f"no node has the attribute {id_attribute!r}; {nearest(id_attribute, attributes)}")
        return None
    own = id_attribute if id_attribute in attributes else ""
    ids = {node: data.get(own) if own else node for node, data in nodes.items()}
    shown = "label" if KINDS[path.suffix.lower()] == "GEXF" and label_attribute != "label" else ""
    columns = {"id": as_column(list(ids.values())), **_columns(nodes.values(), ("id", own, shown))}
    links = _links(edges, ids)
    return RawGraph(
        Table(f"{path.name} nodes", columns, len(nodes), problems, {"id": own} if own else {}),
        Table(f"{path.name} edges", links, len(edges), problems),
        _notes(directed=graph.is_directed(), without_label=shown in attributes),
    )


def _links(edges: Collection[tuple[Any, Any, Mapping[str, Any]]], ids: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the edges as columns: the ids of their ends, and their attributes."""
    ends = {
        "source": as_column([ids[source] for source, _, _ in edges]),
        "target": as_column([ids[target] for _, target, _ in edges]),
    }
    return ends | _columns([data for _, _, data in edges], ends)


def _notes(directed: bool, without_label: bool) -> tuple[str, ...]:
    notes = ("the file's edges have a direction; --directed keeps to it",) if directed else ()
    left_out = "left out: label (in GEXF, the name that a picture shows; --label label takes it for the class)"
    return (*notes, left_out) if without_label else notes


def _columns(rows: Collection[Mapping[str, Any]], besides: Collection[str]) -> dict[str, Any]:
    """Return the attributes of rows as columns, but for those of some names."""
    names = [name for name in _names(rows) if name not in besides]
    return {name: as_column([row.get(name) for row in rows]) for name in names}


def _read(path: Path, problems: Problems) -> Any:
    import networkx

    kind = KINDS[path.suffix.lower()]
    try:
        if kind == "GraphML":
            return networkx.read_graphml(path)
        return networkx.read_gexf(path)
    except OSError as error:
        problems.add(str(path), f"cannot be read: {error.strerror or error}")
    except ParseError as error:
        problems.add(str(path), f"is no {kind} file: {error}")
    except (networkx.NetworkXException, KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
        problems.add(str(path), f"is no {kind} file that networkx can read: {' '.join(str(error).split())}")
    return None


def _names(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the attributes that some row has, in the order of first mention."""
    return [str(name) for name in dict.fromkeys(name for row in rows for name in row)]

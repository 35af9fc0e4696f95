"""Where a graph to import may be: a folder with two tables, a GraphML or GEXF file, a saved torch_geometric one."""

from __future__ import annotations

from pathlib import Path

from isthmus.core.errors import BadInput
from isthmus.data.folders.schema.schema import write_schema
from isthmus.data.folders.tables.reading import FORMATS, Problems, RawGraph, find_table
from isthmus.data.imports.importing import Prepared, Wishes, reading_of
from isthmus.data.imports.two_tables import read_tables


def read_source(source: str, delimiter: str, wishes: Wishes, problems: Problems) -> RawGraph | None:
    """Return the graph in a folder or a file, by its ending; None after noting why it cannot be read."""
    if "://" in source:  # not repeated: it may hold a password
        raise BadInput("SOURCE is the address of a database; give it as --sql, with --nodes-query and --edges-query")
    path = Path(source)
    ending = path.suffix.lower()
    if path.is_dir():
        _refuse_other_kinds(path)
        found = [find_table(path, "nodes"), find_table(path, "edges")]
        if any(len(files) != 1 for files in found):
            raise BadInput(
                f"{path} has not one table of nodes and one of edges, as .csv or .parquet; give --nodes, --edges"
            )
        return read_tables(found[0][0], found[1][0], delimiter, problems, reading_of(wishes))
    if ending in (".graphml", ".gexf"):
        from isthmus.data.imports.network import read_network

        return read_network(path, wishes.roles.id or "", wishes.roles.label or "", problems)
    if ending in (".pt", ".pth"):
        from isthmus.data.imports.pyg import read_pyg

        return read_pyg(path, problems)
    remedy = "; tables are given as --nodes and --edges" if ending in (".csv", ".tsv", ".parquet", ".pq") else ""
    raise BadInput(f"SOURCE is {source!r}; known: a folder, .gexf, .graphml, .pt, .pth{remedy}")


def _refuse_other_kinds(path: Path) -> None:
    """Refuse a folder of links or of graphs, of which no graph can be made."""
    stems = {file.stem for file in path.iterdir() if file.suffix.removeprefix(".") in FORMATS}
    if stems <= {"nodes", "edges"}:
        return  # such are graphs; the kinds of folders come with torch, which takes longer than many an import
    from isthmus.data.folders.graph_folder import Folder
    from isthmus.data.folders.own_kinds import kind_at

    kind = kind_at(path)
    if kind is not Folder and kind.is_at(path):
        what = f"has the tables of a {kind.called}, which is read as it is: try isthmus data check {path}"
        raise BadInput(f"{path} {what}; if two of them are a graph, give --nodes and --edges")


def write_imported(prepared: Prepared, folder: Path | None, schema: Path | None, format: str = "parquet") -> None:
    """Write the graph folder and the schema, each where a place for it is given: both or none."""
    if schema is not None:
        write_schema(prepared.schema, schema)
    try:
        if folder is not None:
            prepared.write(folder, format)
    except BaseException:
        if schema is not None:
            schema.unlink(missing_ok=True)
        raise

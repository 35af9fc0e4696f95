"""isthmus data import: a graph folder from tables, a database, a GraphML or GEXF file, or a torch_geometric one."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isthmus.cli.output import Json, comma_list, examples, print_json
from isthmus.core.errors import BadInput, nearest
from isthmus.core.outside import printable

if TYPE_CHECKING:
    from isthmus.data.folders.tables.reading import Problems, RawGraph
    from isthmus.data.imports.importing import Prepared, Wishes

EXAMPLES = examples(
    "isthmus data import --nodes customers.csv --edges payments.csv --id customer --source payer --target payee "
    "--label segment --write-schema schema.yaml --out north",
    "isthmus data import --nodes clients.parquet --edges transfers.parquet --schema schema.yaml --out south",
    'isthmus data import --sql postgresql://reader@host/bank --nodes-query "SELECT * FROM customers" '
    '--edges-query "SELECT payer AS source, payee AS target FROM payments" --out bank',
    "isthmus data import network.graphml --label group --out mine",
    "isthmus data import graph.pt --out mine",
)


def import_graph(
    source: Annotated[
        str, typer.Argument(metavar="[SOURCE]", help="A .graphml, .gexf or .pt file, or a folder with two tables.")
    ] = "",
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="The graph folder to make.")] = None,
    nodes: Annotated[Path | None, typer.Option(metavar="FILE", help="Nodes: .csv, .tsv, .parquet.")] = None,
    edges: Annotated[Path | None, typer.Option(metavar="FILE", help="Edges: .csv, .tsv, .parquet.")] = None,
    sql: Annotated[str, typer.Option(metavar="URL", help="A database; env:NAME takes the URL from a variable.")] = "",
    nodes_query: Annotated[str, typer.Option(metavar="SQL", help="Gives the nodes.")] = "",
    edges_query: Annotated[str, typer.Option(metavar="SQL", help="Gives the edges.")] = "",
    id: Annotated[str | None, typer.Option(metavar="COLUMN", help="A node's id [id].")] = None,
    label: Annotated[str | None, typer.Option(metavar="COLUMN", help="A node's class [label].")] = None,
    split: Annotated[str | None, typer.Option(metavar="COLUMN", help="train, val, test or nothing [split].")] = None,
    source_column: Annotated[
        str | None, typer.Option("--source", metavar="COLUMN", help="Where an edge starts [source].")
    ] = None,
    target: Annotated[str | None, typer.Option(metavar="COLUMN", help="Where it ends [target].")] = None,
    weight: Annotated[str | None, typer.Option(metavar="COLUMN", help="Its weight [weight].")] = None,
    delimiter: Annotated[str, typer.Option(metavar="MARK", help="What separates values in CSV.")] = "",
    schema: Annotated[Path | None, typer.Option(metavar="FILE", help="The schema to follow.")] = None,
    write_schema: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the schema that the data make.")
    ] = None,
    rename: Annotated[
        list[str] | None, typer.Option(metavar="OLD=NEW", help="The schema's name for a column of nodes.")
    ] = None,
    number: Annotated[list[str] | None, typer.Option(metavar="COLUMN", help="Is a number.")] = None,
    category: Annotated[list[str] | None, typer.Option(metavar="COLUMN", help="Is a category.")] = None,
    text: Annotated[list[str] | None, typer.Option(metavar="COLUMN", help="Is a text.")] = None,
    attribute: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="Is kept to split by, and no feature.")
    ] = None,
    ignore: Annotated[list[str] | None, typer.Option(metavar="COLUMN", help="Is left out.")] = None,
    standardize: Annotated[bool, typer.Option("--standardize", help="Numbers get mean 0 and deviation 1.")] = False,
    min_count: Annotated[int | None, typer.Option(min=1, help="Rows a word must be in [2].")] = None,
    max_words: Annotated[int | None, typer.Option(min=1, help="Words of a vocabulary [1000].")] = None,
    classes: Annotated[str, typer.Option(metavar="A,B,C", help="The classes in their order.")] = "",
    directed: Annotated[bool, typer.Option("--directed", help="An edge and its reverse are two edges.")] = False,
    repeated: Annotated[
        str, typer.Option(metavar="RULE", help="Weights of an edge told again: refuse, sum, mean, max.")
    ] = "refuse",
    unknown_ends: Annotated[
        str, typer.Option(metavar="RULE", help="Edges to nodes not there: refuse, drop.")
    ] = "refuse",
    format: Annotated[str, typer.Option(help="Of the tables written: parquet, csv.")] = "parquet",
    verbose: Annotated[bool, typer.Option("--verbose", help="Tell every feature, however many there are.")] = False,
    json: Json = False,
) -> None:
    """Make a graph folder from your own data; features by a schema that other silos can follow."""
    from isthmus.data.folders.schema.derive import Choices
    from isthmus.data.folders.schema.schema import read_schema
    from isthmus.data.imports.importing import REPEATED, UNKNOWN_ENDS, EdgeRules, Roles, Wishes, prepare
    from isthmus.data.imports.sources import write_imported

    if out is None and write_schema is None:
        raise BadInput("nothing to write; give --out FOLDER, or --write-schema FILE, or both")
    for option, found, known in (("repeated", repeated, REPEATED), ("unknown-ends", unknown_ends, UNKNOWN_ENDS)):
        if found not in known:
            raise BadInput(f"--{option} is {found!r}; {nearest(found, known)}")
    told: dict[str, Any] = {"number": number, "category": category, "text": text, "ignore": ignore}
    told |= {"min-count": min_count, "max-words": max_words, "classes": classes}
    told |= {"standardize": standardize and write_schema is None}
    if schema is not None and any(told.values()):
        option = next(name for name, value in told.items() if value)
        raise BadInput(f"--{option} goes without --schema: the schema says what the columns are")
    _check_places(out, write_schema, format)
    wishes = Wishes(
        Roles(id, label, split, source_column, target, weight),
        read_schema(schema) if schema is not None else None,
        fill=write_schema is not None,
        choices=Choices(
            tuple(number or ()),
            tuple(category or ()),
            tuple(text or ()),
            tuple(ignore or ()),
            standardize,
            min_count or Choices.min_count,
            max_words or Choices.max_words,
        ),
        classes=tuple(comma_list(classes)),
        renamed=_renamed(rename or []),
        attributes=tuple(attribute or ()),
        edge_rules=EdgeRules(directed, repeated, unknown_ends),
    )
    raw, problems = _read(source, nodes, edges, sql, nodes_query, edges_query, delimiter, wishes)
    prepared = prepare(raw, wishes, problems)
    write_imported(prepared, out, write_schema, format)
    _tell(prepared, out, write_schema, directed, verbose, json)


def _renamed(words: list[str]) -> dict[str, str]:
    pairs = dict(word.partition("=")[::2] for word in words)
    odd = [word for word in words if not all(word.partition("="))]
    if odd or len(pairs) < len(words):
        raise BadInput(f"--rename is {(odd or words)[0]!r}; OLD=NEW is needed, once for each column")
    return pairs


def _check_places(out: Path | None, write_schema: Path | None, format: str) -> None:
    """Refuse what cannot be written before anything is read."""
    from isthmus.data.folders.tables.writing import check_new_folder

    if out is not None:
        check_new_folder(out, format)
    if write_schema is not None and write_schema.exists():
        raise BadInput(f"{write_schema} exists already; choose another file, or follow it with --schema {write_schema}")


def _read(
    source: str,
    nodes: Path | None,
    edges: Path | None,
    sql: str,
    nodes_query: str,
    edges_query: str,
    delimiter: str,
    wishes: Wishes,
) -> tuple[RawGraph | None, Problems]:
    """Return the tables of the one source that is given, and where its problems are noted."""
    from isthmus.data.folders.tables.reading import Problems
    from isthmus.data.imports.importing import reading_of
    from isthmus.data.imports.sources import read_source
    from isthmus.data.imports.two_tables import read_tables

    _check_one_source(source, nodes, edges, sql, (nodes_query, edges_query))
    if len(delimiter) > 1:
        raise BadInput(f"--delimiter is {delimiter!r}; one character is needed")
    if sql:
        from isthmus.data.imports.sql import read_sql

        problems = Problems("import from the database")
        return read_sql(sql, nodes_query, edges_query, problems), problems
    if nodes is not None and edges is not None:
        problems = Problems(f"import of {nodes} and {edges}")
        return read_tables(nodes, edges, delimiter, problems, reading_of(wishes)), problems
    problems = Problems(f"import of {Path(source)}")
    return read_source(source, delimiter, wishes, problems), problems


def _check_one_source(source: str, nodes: Path | None, edges: Path | None, sql: str, queries: tuple[str, str]) -> None:
    """Refuse no source, several, and one of which a part is missing."""
    given = [name for name, value in (("SOURCE", source), ("--nodes", nodes or edges), ("--sql", sql)) if value]
    if len(given) != 1:
        found = f"{' and '.join(given)} are given" if given else "none is given"
        raise BadInput(
            f"one source is needed, {found}; SOURCE (a file), --nodes and --edges, or --sql with two queries"
        )
    if sql and not all(queries):
        raise BadInput("--sql needs two queries: --nodes-query and --edges-query")
    if any(queries) and not sql:
        raise BadInput("--nodes-query and --edges-query go with --sql")
    if not source and not sql and (nodes is None or edges is None):
        raise BadInput(f"{given[0] if nodes else '--edges'} is given alone; both --nodes and --edges are needed")


def _tell(
    prepared: Prepared, out: Path | None, write_schema: Path | None, directed: bool, verbose: bool, json: bool
) -> None:
    from isthmus.data.imports.importing import described

    schema, facts = prepared.schema, {"nodes": prepared.nodes.num_rows, "edges": prepared.num_edges(directed)}
    if json:
        places = {"folder": out and str(out), "schema": write_schema and str(write_schema), "digest": schema.digest}
        more: dict[str, Any] = {"features": len(schema.columns), "classes": list(schema.classes)}
        more |= {"attributes": list(prepared.attributes), "notes": list(prepared.notes)}
        print_json({**places, **facts, **more})
        return
    edges = f"{facts['edges']} {'directed ' if directed else ''}edges"
    lines = [f"{facts['nodes']} nodes, {edges}, {len(schema.columns)} feature columns"]
    lines += described(schema, verbose)
    lines += [f"attributes, to split by: {', '.join(prepared.attributes)}"] if prepared.attributes else []
    lines += [f"classes: {', '.join(schema.classes) or 'none'}", *prepared.notes, f"schema digest: {schema.digest}"]
    lines += [f"schema: {write_schema}"] if write_schema is not None else []
    if out is not None:
        words = ["dataset.name=folder", f"dataset.path={out}", *(["dataset.undirected=false"] if directed else [])]
        lines.append(f"graph folder: {out}; run it with: {shlex.join(['isthmus', 'run', *words])}")
    for line in lines:
        typer.echo(printable(line))

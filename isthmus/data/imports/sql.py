"""A graph from a database: two queries, read-only, by SQLAlchemy."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, quote_plus

from isthmus.core.errors import BadInput, MissingExtra
from isthmus.data.folders.tables.reading import Problems, RawGraph, Table, as_column, as_table

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection

_SECRET = re.compile(r"pass|pwd|secret|token|key", re.IGNORECASE)
_FROM_ENVIRONMENT = "env:"


def read_sql(url: str, nodes_query: str, edges_query: str, problems: Problems) -> RawGraph | None:
    """Return the graph that two queries give, or None after noting what the database says against them.

    `url` may be "env:NAME": then the address is in the environment variable NAME, and no process list shows its
    password. SQLite and PostgreSQL are opened read-only; elsewhere, what a query writes is rolled back.
    """
    try:
        import sqlalchemy
    except ImportError:
        raise MissingExtra("sqlalchemy", "sql", "reading a database") from None
    address = database_address(url)
    hide = _Secrets(address)
    try:
        engine = sqlalchemy.create_engine(_readable(address), poolclass=sqlalchemy.NullPool)
    except (sqlalchemy.exc.ArgumentError, ImportError) as error:  # NoSuchModuleError is a kind of the first
        if isinstance(error, ImportError) and address.get_driver_name() == "psycopg":
            raise MissingExtra("psycopg", "sql", "reading PostgreSQL") from None
        raise BadInput(f"{shown_url(address)}: no way to such a database: {hide.in_words(error)}") from None
    try:
        with engine.connect() as connection:
            if address.get_backend_name() == "postgresql":
                connection = connection.execution_options(postgresql_readonly=True)
            tables = [
                _query(connection, query, name, hide, problems)
                for name, query in (("nodes query", nodes_query), ("edges query", edges_query))
            ]
            connection.rollback()
    except (sqlalchemy.exc.SQLAlchemyError, OSError, ValueError) as error:
        raise BadInput(f"{shown_url(address)}: cannot be reached: {hide.in_words(error)}") from None
    nodes, edges = tables
    return RawGraph(nodes, edges) if nodes is not None and edges is not None else None


def database_address(url: str) -> URL:
    """Return the parsed URL; errors do not repeat it, since it may hold a password."""
    import sqlalchemy

    if url.startswith(_FROM_ENVIRONMENT):
        name = url.removeprefix(_FROM_ENVIRONMENT)
        if not os.environ.get(name):
            raise BadInput(f"--sql is {url!r}, but the environment variable {name!r} is not set")
        url = os.environ[name]
    try:
        address = sqlalchemy.make_url(url)
    except (sqlalchemy.exc.ArgumentError, ValueError):
        raise BadInput("--sql is no URL of a database; one looks like postgresql://user@host/name") from None
    if address.drivername in ("postgres", "postgresql"):
        address = address.set(drivername="postgresql+psycopg")
    return address


def shown_url(address: URL) -> str:
    """Return a database's address without its secrets, for people to read."""
    query = {key: "***" if _SECRET.search(key) else value for key, value in address.query.items()}
    return address.set(query=query).render_as_string(hide_password=True).replace("%2A%2A%2A", "***")


class _Secrets:
    """The secrets of an address, to be taken out of whatever a driver says."""

    def __init__(self, address: URL) -> None:
        found = [str(address.password)] if address.password else []
        for key, value in address.query.items():
            if _SECRET.search(key):
                found += [value] if isinstance(value, str) else list(value)
        spelled = {way(secret) for secret in found if secret for way in (str, quote, quote_plus)}
        self.spelled = sorted(spelled, key=len, reverse=True)

    def in_words(self, error: Exception) -> str:
        """Return what the database or its driver says, on one line, without secrets."""
        said = str(getattr(error, "orig", None) or error)
        for secret in self.spelled:
            said = said.replace(secret, "***")
        said = re.sub(r"\(Background on this error at: \S+\)", "", said)
        return " ".join(said.split())


def _readable(address: URL) -> URL:
    """Return the address under which nothing can be written: SQLite would make a file that is not there."""
    if address.get_backend_name() != "sqlite" or not address.database or address.database == ":memory:":
        return address
    if "uri" in address.query:
        return address.update_query_dict({"mode": "ro"})
    path = Path(address.database)
    if not path.is_file():
        raise BadInput(f"{shown_url(address)}: there is no file {str(path)!r}")
    query = {**address.query, "mode": "ro", "uri": "true"}
    return address.set(database=f"file:{quote(str(path))}", query=query)


def _query(connection: Connection, query: str, name: str, hide: _Secrets, problems: Problems) -> Table | None:
    import sqlalchemy

    try:
        # As it stands: a colon or a per cent sign in it is no place for a parameter.
        result = connection.exec_driver_sql(query, execution_options={"no_parameters": True})
        if not result.returns_rows:
            problems.add(name, "gives no rows; a SELECT is needed")
            return None
        names, rows = list(result.keys()), result.fetchall()
    except sqlalchemy.exc.SQLAlchemyError as error:
        problems.add(name, f"the database says: {hide.in_words(error)}")
        connection.rollback()  # or it would refuse the next query as well
        return None
    columns = [as_column([row[place] for row in rows]) for place in range(len(names))]
    return as_table(name, names, columns, len(rows), problems)

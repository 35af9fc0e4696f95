"""Where graphs come from: one file per source, each giving a table of nodes and a table of edges."""

from __future__ import annotations

from isthmus.data.imports.network import read_network
from isthmus.data.imports.pyg import read_pyg
from isthmus.data.imports.sql import read_sql
from isthmus.data.imports.two_tables import read_tables

__all__ = ["read_network", "read_pyg", "read_sql", "read_tables"]

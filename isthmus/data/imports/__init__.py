"""Where graphs come from: one file per source, each giving a table of nodes and a table of edges."""

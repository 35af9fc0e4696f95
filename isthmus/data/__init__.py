"""Graphs: where they come from, how they are divided among clients, and what each client holds."""

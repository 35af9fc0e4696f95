"""Checks and toy data, shipped so that users can hold their own algorithms to the same standard."""

from isthmus.testing.conformance import CHECKS, check_algorithm
from isthmus.testing.scripted import ScriptedClients
from isthmus.testing.splitters import check_splitter
from isthmus.testing.toys import toy_client, toy_course, toy_graph, toy_scenario

__all__ = [
    "CHECKS",
    "ScriptedClients",
    "check_algorithm",
    "check_splitter",
    "toy_client",
    "toy_course",
    "toy_graph",
    "toy_scenario",
]

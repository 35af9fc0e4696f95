"""Checks and toy data, shipped so that users can hold their own algorithms to the same standard."""

from isthmus.testing.conformance import CHECKS, check_algorithm
from isthmus.testing.hostile import HostileRuntime, HostileSilo, Liar, Lie, lies_about
from isthmus.testing.malicious_server import SIEGES, besiege
from isthmus.testing.mutations import Mutator
from isthmus.testing.scripted import ScriptedClients
from isthmus.testing.splitters import check_splitter
from isthmus.testing.toys import toy_client, toy_course, toy_graph, toy_scenario
from isthmus.testing.traces import trace_course

__all__ = [
    "CHECKS",
    "SIEGES",
    "HostileRuntime",
    "HostileSilo",
    "Liar",
    "Lie",
    "Mutator",
    "ScriptedClients",
    "besiege",
    "check_algorithm",
    "check_splitter",
    "lies_about",
    "toy_client",
    "toy_course",
    "toy_graph",
    "toy_scenario",
    "trace_course",
]

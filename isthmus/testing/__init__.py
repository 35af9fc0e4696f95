"""Checks and toy data, shipped so that users can hold their own algorithms to the same standard."""

from isthmus.testing.attacks import ATTACK_CHECKS, check_attack
from isthmus.testing.conformance import CHECKS, check_algorithm
from isthmus.testing.guards import COURSE_CHECKS, GUARD_CHECKS, check_guard
from isthmus.testing.hostile.counting import Bound, Cost, Meter, require_within
from isthmus.testing.hostile.lies import HostileRuntime, HostileSilo, Liar, Lie, lies_about
from isthmus.testing.hostile.lying import (
    check_lies_between_sites,
    check_lies_in_bytes,
    check_stale_messages,
    check_stale_replies,
)
from isthmus.testing.hostile.malicious_server import SIEGES, besiege, check_steps
from isthmus.testing.hostile.mutations import Mutator
from isthmus.testing.hostile.sites import World, toy_world, trace_sites
from isthmus.testing.hostile.weighing import check_claims, check_claims_between_sites
from isthmus.testing.searches import SEARCH_CHECKS, check_search
from isthmus.testing.splitters import check_splitter
from isthmus.testing.toys import ScriptedClients, toy_client, toy_course, toy_graph, toy_scenario
from isthmus.testing.traces import trace_course

__all__ = [
    "ATTACK_CHECKS",
    "CHECKS",
    "COURSE_CHECKS",
    "GUARD_CHECKS",
    "SEARCH_CHECKS",
    "SIEGES",
    "Bound",
    "Cost",
    "HostileRuntime",
    "HostileSilo",
    "Liar",
    "Lie",
    "Meter",
    "Mutator",
    "ScriptedClients",
    "World",
    "besiege",
    "check_algorithm",
    "check_attack",
    "check_claims",
    "check_claims_between_sites",
    "check_guard",
    "check_lies_between_sites",
    "check_lies_in_bytes",
    "check_search",
    "check_splitter",
    "check_stale_messages",
    "check_stale_replies",
    "check_steps",
    "lies_about",
    "require_within",
    "toy_client",
    "toy_course",
    "toy_graph",
    "toy_scenario",
    "toy_world",
    "trace_course",
    "trace_sites",
]

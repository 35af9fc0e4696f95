"""What the algorithms are besieged and lied to on: toy graphs, and toy ratings for the one that shares users."""

from __future__ import annotations

from dataclasses import replace

from isthmus.learn.tasks import LinkClassification
from isthmus.runs.simulation import Scenario
from isthmus.testing import World, toy_world
from tests.algorithms.fedgnn.test_fedgnn import MODEL, link_scenario


def world_of(name: str) -> World:
    """Return the world in which an algorithm sends all its messages with something in them."""
    if name != "fedgnn":
        return toy_world()
    made = link_scenario()
    names = tuple(f"class {k}" for k in range(made.whole.num_classes))
    parts = {client: replace(part, class_names=names) for client, part in made.parts.items()}
    return World(
        Scenario(replace(made.whole, class_names=names), parts), {"task": LinkClassification(), "model": MODEL}
    )

"""What a monitor looks at, from a toy course."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import isthmus as ist
from isthmus.monitors import View
from isthmus.runs.measuring import _view
from isthmus.runs.simulation import Scenario, Simulation
from isthmus.testing import toy_course, toy_scenario


def toy_view(
    models: Mapping[str, ist.Params],
    scenario: Scenario | None = None,
    starts: Mapping[str, ist.Params] | None = None,
    weights: Mapping[str, float] | None = None,
    algorithm: ist.Algorithm[Any] | None = None,
    **changes: Any,
) -> View:
    course = toy_course(algorithm or ist.FedAvg(), **changes)
    simulation = Simulation(course, scenario or toy_scenario())
    return _view(simulation, 1, models=models, starts=starts or {}, weights=weights or {})

"""What a monitor looks at, from a toy course."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import isthmus as ist
from isthmus.monitors import View
from isthmus.runs.measuring import Models, _view
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
    return _view(course, Simulation(course, scenario or toy_scenario()), 1, Models(models, starts or {}, weights or {}))

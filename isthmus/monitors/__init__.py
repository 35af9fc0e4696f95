"""Monitors by name: what a course can measure beside its scores.

A monitor looks at all models and all graphs at once, so it exists in simulation only. A new one is a class in a file
here, and a line in the table.
"""

from isthmus.monitors.cka import CKA
from isthmus.monitors.connectivity import Connectivity
from isthmus.monitors.gradient_smoothness import GradientSmoothness
from isthmus.monitors.hidden_error import HiddenError
from isthmus.monitors.monitor import Measured, Monitor, View
from isthmus.monitors.walk_distance import WalkDistance

MONITORS: dict[str, type[Monitor]] = {
    "cka": CKA,
    "walk_distance": WalkDistance,
    "connectivity": Connectivity,
    "gradient_smoothness": GradientSmoothness,
    "hidden_error": HiddenError,
}

__all__ = ["MONITORS", "Measured", "Monitor", "View"]

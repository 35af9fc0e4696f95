"""What a model says of data that an attacker has."""

from __future__ import annotations

from torch import Tensor

from isthmus.config.course import Course
from isthmus.core.record import Params
from isthmus.learn.optimizers import load_params
from isthmus.runs.simulation import build_model, dims_of


def probabilities(course: Course, data: object, params: Params) -> Tensor:
    """Return the probabilities that a model gives each item of some data, (items, classes), in double precision."""
    model = build_model(course, *dims_of(course, data, "the attacker"))
    load_params(model, {**model.state_dict(), **params})
    return course.task.predict(model, course.task.prepare(data)).probabilities.double()

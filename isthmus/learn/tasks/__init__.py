"""Tasks by name."""

from isthmus.learn.tasks.node import NodeClassification
from isthmus.learn.tasks.task import Predictions, Task

TASKS: dict[str, type[Task]] = {"node_classification": NodeClassification}

__all__ = ["TASKS", "NodeClassification", "Predictions", "Task"]

"""Tasks by name."""

from isthmus.learn.tasks.graph_task import GraphBinary, GraphClassification, GraphRegression
from isthmus.learn.tasks.link_classification import LinkClassification
from isthmus.learn.tasks.link_prediction import LinkPrediction
from isthmus.learn.tasks.node_classification import NodeClassification
from isthmus.learn.tasks.node_samples import NodeSamples
from isthmus.learn.tasks.task import Predictions, Task

TASKS: dict[str, type[Task]] = {
    "node_classification": NodeClassification,
    "node_samples": NodeSamples,
    "link_prediction": LinkPrediction,
    "link_classification": LinkClassification,
    "graph_classification": GraphClassification,
    "graph_binary": GraphBinary,
    "graph_regression": GraphRegression,
}

__all__ = [
    "TASKS",
    "GraphBinary",
    "GraphClassification",
    "GraphRegression",
    "LinkClassification",
    "LinkPrediction",
    "NodeClassification",
    "NodeSamples",
    "Predictions",
    "Task",
]

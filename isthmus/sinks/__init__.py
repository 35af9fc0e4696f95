"""Where the numbers of a run go while it runs; a new sink is a class in a file here, and a line in the table."""

from isthmus.sinks.json_lines import JsonLines
from isthmus.sinks.mlflow import MLflow
from isthmus.sinks.sink import About, Sink, Sinks
from isthmus.sinks.tensorboard import TensorBoard
from isthmus.sinks.wandb import WandB

SINKS: dict[str, type[Sink]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "mlflow": MLflow,
    "json_lines": JsonLines,
}

__all__ = ["SINKS", "About", "Sink", "Sinks"]

"""A sink for MLflow: a store of its own beside the run folders, or the server that MLFLOW_TRACKING_URI names."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from isthmus.core.errors import MissingExtra
from isthmus.core.outside import replace_file
from isthmus.sinks.sink import About, Sink, flat

EXPERIMENT = "isthmus"
MOST_METRICS, MOST_PARAMS = 1000, 100  # in one message
LONGEST_PARAM = 6000


class MLflow(Sink):
    """Logs metrics, with the course's keys as parameters; the run's id is in the run folder's `mlflow_run`.

    `mlflow ui --backend-store-uri sqlite:///runs/mlflow.db` shows the store beside run folders in `runs`. A run that is
    gone on with goes on there too.
    """

    def __init__(self, about: About) -> None:
        super().__init__(about)
        try:
            from mlflow.tracking import MlflowClient
        except ImportError:
            raise MissingExtra("mlflow-skinny", "sinks", "the MLflow sink") from None
        store = f"sqlite:///{(about.folder.parent / 'mlflow.db').resolve()}"
        self._client = MlflowClient(tracking_uri=os.environ.get("MLFLOW_TRACKING_URI", store))
        path = about.folder / "mlflow_run"
        if path.is_file():
            self._run = path.read_text().strip()
            self._client.update_run(self._run, status="RUNNING")
            return
        experiment = self._client.get_experiment_by_name(EXPERIMENT)
        number = self._client.create_experiment(EXPERIMENT) if experiment is None else experiment.experiment_id
        self._run = self._client.create_run(number, run_name=about.name).info.run_id
        replace_file(path, f"{self._run}\n".encode())
        self._say_course(about.course)

    def _say_course(self, course: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        said = [Param(key, str(value)[:LONGEST_PARAM]) for key, value in flat(course).items() if str(value)]
        for part in _parts(said, MOST_PARAMS):
            self._client.log_batch(self._run, params=part)

    def log(self, values: Mapping[str, float], round: int) -> None:
        """Log metrics at a step."""
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        found = [
            Metric(_name(name), float(value), now, round) for name, value in values.items() if math.isfinite(value)
        ]
        for part in _parts(found, MOST_METRICS):
            self._client.log_batch(self._run, metrics=part)

    def close(self, values: Mapping[str, float]) -> None:
        """Log the last scores, and end the run."""
        self.log(values, 0)
        self._client.set_terminated(self._run)

    def leave(self) -> None:
        """Say that the run was ended before its end."""
        self._client.set_terminated(self._run, "KILLED")


def _name(name: str) -> str:
    """Return a name with what MLflow lets a metric have."""
    return "".join(letter if letter.isalnum() or letter in "_-./ :" else "_" for letter in name)


def _parts(values: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (values[first : first + size] for first in range(0, len(values), size))

"""Algorithms that know nothing of the task, on sets of graphs and on links."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from isthmus.algorithms import MOON, FedAvg
from isthmus.algorithms.fedavg import TrainModel
from isthmus.algorithms.moon import contrast
from isthmus.core.record import Params
from isthmus.learn.batching import FullBatch
from isthmus.learn.graph_client import GraphClient
from isthmus.learn.optimizers import load_params, read_params
from isthmus.learn.tasks import LinkClassification
from isthmus.models.model import Model
from isthmus.runs.simulation import Simulation
from isthmus.testing.traces import require_same, trace_course
from tests.learn.tasks.link_toys import toy_facts
from tests.learn.tasks.test_link_tasks import model_for

from .test_graph_courses import course_of, scenario_of


def shaken(params: Params, scale: float = 0.3) -> Params:
    generator = torch.Generator().manual_seed(4)
    return {name: w + scale * torch.randn(w.shape, generator=generator) for name, w in params.items()}


@pytest.mark.meet(1)
@pytest.mark.parametrize("name", ["moon", "gcfl_plus", "scaffold", "fednova", "feddyn"])
@pytest.mark.parametrize("target", ["class", "value"])
def test_graph_tasks_run_alike_in_loop_and_strict(name: str, target: str) -> None:
    traces = [
        trace_course(course_of(name, target, runtime=runtime), scenario_of(target)) for runtime in ("loop", "strict")
    ]
    assert not any(report.failures for trace in traces for report in trace.exchanges)
    assert all(trace.ended_by is None and trace.last == 3 for trace in traces)
    require_same(traces[0].values(), traces[1].values(), "loop and strict")


def test_the_contrast_of_graphs_is_that_of_their_rows_after_the_readout() -> None:
    course = course_of("moon")
    client = Simulation(course, scenario_of("class")).clients["a"]
    start = read_params(client.model)
    previous = shaken(start)
    batch = next(client.task.batches(client.prepared, FullBatch(), torch.Generator()))
    client.state["previous"] = previous
    loss = MOON(mu=3.0, tau=0.4).loss(start, client)
    assert loss is not None
    model = client.model
    assert isinstance(model, Model) and model.readout is not None

    def rows(params: Params) -> Tensor:
        load_params(model, params)
        found: Tensor = model.readout(batch.graph, model.embed(batch.graph, None), None)  # type: ignore[misc]
        return found.detach()

    g, p, z = rows(start), rows(previous), rows(shaken(start, 0.1))
    with torch.no_grad():
        expected = client.task.loss(model, batch, None) + 3.0 * contrast(z, g, p, 0.4).mean()  # type: ignore[arg-type]
        torch.testing.assert_close(loss(model, batch, None), expected)  # type: ignore[arg-type]


def test_link_tasks_contrast_the_nodes_of_the_message_graph() -> None:
    task, data = LinkClassification(), toy_facts()
    client = GraphClient("a", data, task, model_for(task, data), FullBatch())
    start = read_params(client.model)
    client.state["previous"] = shaken(start)
    moon = MOON(mu=3.0).train(TrainModel(start), client).params
    fedavg = FedAvg().train(TrainModel(start), client).params
    assert max(float((moon[n] - w).abs().max()) for n, w in fedavg.items()) > 1e-4

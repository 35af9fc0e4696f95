"""Scripts under papers/ that draw what no suite draws, on small stand-ins for the datasets."""

import importlib.util
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from isthmus.report.charts import scatter_chart
from isthmus.runs import run
from isthmus.simulation import load_scenario
from isthmus.suites.part import narrowed
from isthmus.suites.spec import load_suite

FEDGL = Path(__file__).parent.parent / "papers" / "fedgl"


@pytest.mark.parametrize("method", ["Centralized", "FedGL"])
def test_fedgl_embeddings_are_the_outputs_of_a_runs_model_on_the_merged_graph(method: str, tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("embeddings", FEDGL / "embeddings.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    suite = narrowed(load_suite(FEDGL / "table2.yaml"), ["dataset=Cora", f"method={method}"])
    suite.base["rounds"] = 2
    point = suite.points()[0]
    result = run(point.course, run_dir=tmp_path / "run")
    whole = load_scenario(point.course, tmp_path).whole
    found = script.embedded(point, tmp_path / "run", whole)
    test = whole.mask("test")
    right = float((found.argmax(dim=1) == whole.y)[test].double().mean())
    assert right == pytest.approx(result.score(), abs=1e-6)
    chosen = test.nonzero().flatten()[:60]
    panel = script.panel(method, found[chosen].numpy(), whole.y[chosen].numpy(), whole.class_names)
    assert sum(len(series.points) for series in panel.series) == 60
    assert {series.name for series in panel.series} == {whole.class_names[c] for c in np.unique(whole.y[chosen])}
    assert ElementTree.fromstring(scatter_chart([panel])).tag.endswith("svg")
    assert torch.isfinite(found).all()

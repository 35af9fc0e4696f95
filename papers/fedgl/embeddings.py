"""FedGL (Chen et al., 2021), Fig. 5 to 7: t-SNE of the embeddings of the global test nodes, by method.

    isthmus compare papers/fedgl/table2.yaml --out results/table2 --data-root DATA
    python papers/fedgl/embeddings.py results/table2 --data-root DATA

Takes the models of the suite's first seed, runs them on the merged graph, and writes fig5.svg (Cora), fig6.svg
(Citeseer) and fig7.svg (ACM) beside this file. It also prints how far apart the classes are: the silhouette score of
the embeddings themselves, by true class, between -1 and 1.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from sklearn.manifold import TSNE
from sklearn.metrics import silhouette_score
from torch import Tensor

from isthmus.core.random import numpy_generator
from isthmus.data.graph import Graph
from isthmus.learn.optimizers import load_params
from isthmus.report.charts import Panel, Point, Series, Words, scatter_chart, to_svg
from isthmus.runs.simulation import build_model, load_scenario
from isthmus.suites.spec import Point as Course
from isthmus.suites.spec import load_suite

FIGURES = {"Cora": "fig5", "Citeseer": "fig6", "ACM": "fig7"}
METHODS = ("Centralized", "Federated", "FedGL w/o GPG", "FedGL w/o GPL", "FedGL")
HERE = Path(__file__).parent
NUM_SHOWN = 400  # nodes of a panel


def embedded(point: Course, run: Path, whole: Graph) -> Tensor:
    """Return the output of a run's model for every node of the merged graph, H of equation 2."""
    task = point.course.task
    model = build_model(point.course, task.input_dim(whole), task.output_dim(whole))
    files = [run / "model.safetensors", *sorted(run.glob("clients/*.safetensors"))]
    load_params(model, load_file(next(file for file in files if file.is_file())))
    with torch.no_grad():
        found: Tensor = model(task.prepare(whole).graph, None)
    return found


def panel(method: str, embeddings: np.ndarray, y: np.ndarray, names: tuple[str, ...]) -> Panel:
    """Return the chart of one method: the nodes' places by t-SNE, a colour for each class."""
    place = TSNE(random_state=0, init="pca", perplexity=30.0).fit_transform(embeddings)
    series = [
        Series(names[c], tuple(Point(float(a), float(b)) for a, b in place[y == c])) for c in np.unique(y).tolist()
    ]
    return Panel(method, tuple(series))


def main() -> None:
    """Draw the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="the folder that isthmus compare has written")
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=HERE)
    words = parser.parse_args()
    suite = load_suite(HERE / "table2.yaml")
    print("| dataset | " + " | ".join(METHODS) + " |\n" + "| --- " * (1 + len(METHODS)) + "|")
    for dataset, name in FIGURES.items():
        points = {
            point.cell["method"]: point
            for point in suite.points()
            if point.cell["dataset"] == dataset and point.seed == suite.seeds[0]
        }
        whole = load_scenario(points["FedGL"].course, words.data_root).whole
        test = whole.mask("test").nonzero().flatten().numpy()
        shown = np.sort(numpy_generator(0, "shown").permutation(len(test))[:NUM_SHOWN])
        names = whole.class_names or tuple(f"class {c}" for c in range(whole.num_classes))
        y, panels, scores = whole.y.numpy()[test], [], []
        for method in METHODS:
            run = words.results / "runs" / points[method].key
            found = embedded(points[method], run, whole).numpy()[test]
            scores.append(f"{silhouette_score(found, y):.3f}")
            panels.append(panel(method, found[shown], y[shown], names))
        text = Words(title=f"Fig. {name[3:]}: embeddings of {NUM_SHOWN} test nodes, {dataset} (t-SNE)")
        (words.out / f"{name}.svg").write_text(to_svg(scatter_chart(panels, text)))
        print(f"| {dataset} | " + " | ".join(scores) + " |", flush=True)


if __name__ == "__main__":
    main()

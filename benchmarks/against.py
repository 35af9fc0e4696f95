"""This tree against another checkout of the project: the same courses, in turn, each tree in a process of its own.

    git worktree add ../before COMMIT
    python benchmarks/against.py ../before [--only NAME ...] [--repeats 5] [--data-root DATA]

One table: milliseconds of the processor for one round without evaluation, one thread, medians over repeats, and the
ratio repeat by repeat. A course is given by its words, so that trees whose modules have other names can be compared.
Courses are those that were once measured beside other packages, at commit 2089390: Cora, GCN-64, four local steps, Adam
with a rate of 0.01 but for "sgd", SCAFFOLD and FGSSL; PROTEINS, GIN, dropout 0.5, batches of 128, one pass over them in
a round. `then` are the milliseconds of that commit on the machine of that day, and `now` is what this tree would
take there, by the ratio, if the other tree is that commit.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from timing import heading, row, short, spread

ADAM = "algorithm.optimizer.name=adam algorithm.optimizer.lr=0.01 algorithm.optimizer.weight_decay=0"
GRAPHS = (
    "dataset.name=proteins splitter.name=random task.name=graph_classification batching.name=mini "
    "batching.batch_size=128 model.gnn.name=gin model.decoder.name=mlp model.readout.name=sum "
    f"algorithm.name=fedavg algorithm.local_steps=1 algorithm.step_unit=epoch {ADAM}"
)


class Case(NamedTuple):
    """A course, and what the commit named above took for a round, where it was written down.

    Fields:
        words:  the course
        then:   milliseconds, by number of clients; None where nothing was written down
        wanted: what it was to come to on that machine
    """

    words: str
    then: dict[int, float]
    wanted: dict[int, float]


def _nodes(method: str) -> str:
    return f"algorithm.name={method} algorithm.local_steps=4"


CASES: dict[str, Case] = {
    "fedavg, sgd": Case(_nodes("fedavg"), {5: 16, 50: 18}, {}),
    "fedavg": Case(f"{_nodes('fedavg')} {ADAM}", {5: 22, 50: 43}, {5: 13, 50: 35}),
    "fedprox": Case(f"{_nodes('fedprox')} {ADAM}", {5: 24, 50: 74}, {}),
    "scaffold": Case(_nodes("scaffold"), {5: 22, 50: 183}, {50: 44}),
    "moon": Case(f"{_nodes('moon')} {ADAM}", {5: 39, 50: 77}, {5: 19, 50: 74}),
    "fedgl": Case(f"{_nodes('fedgl')} {ADAM}", {5: 65, 50: 119}, {5: 30}),
    "fgssl": Case(_nodes("fgssl"), {5: 106, 50: 302}, {}),
    "graphs": Case(GRAPHS, {10: 108}, {10: 25}),
}


class Rounds:
    """Rounds of a course by whichever tree is imported."""

    def __init__(self, words: list[str], data_root: Path) -> None:
        found = [
            _module("isthmus.runs.simulation", "isthmus.simulation"),
            _module("isthmus.core.federation", "isthmus.core.federation"),
        ]
        assembly, self.federation = found
        self.course = import_module("isthmus").load_course(None, words)
        self.simulation = assembly.Simulation(self.course, assembly.load_scenario(self.course, data_root))
        self.number = 0
        self.state = self.course.algorithm.setup(self._federation())

    def _federation(self) -> Any:
        runtime = self.simulation.runtime
        return self.federation.Federation(
            runtime,
            seed=self.course.seed,
            round=self.number,
            cohort=runtime.clients,
            model=self.simulation.initial,
            rules=self.federation.ExchangeRules(),
            report=lambda report: None,
        )

    def turn(self, rounds: int) -> float:
        """Do some rounds and return the milliseconds of the processor for one."""
        before = time.process_time()
        for _ in range(rounds):
            self.number += 1
            self.state = self.course.algorithm.round(self.state, self._federation())
            self.simulation.runtime.mark(self.number)
        return 1e3 * (time.process_time() - before) / rounds


def _module(*names: str) -> Any:
    """Return the first module that there is."""
    for name in names[:-1]:
        try:
            return import_module(name)
        except ModuleNotFoundError as error:
            if not name.startswith(str(error.name)):
                raise
    return import_module(names[-1])


def serve(data_root: Path) -> None:
    """Begin courses and do rounds as the lines of the standard input say, and print the milliseconds."""
    torch.set_num_threads(1)
    rounds: Any = None
    for line in sys.stdin:
        kind, _, rest = line.strip().partition(" ")
        if kind == "begin":
            rounds = Rounds(rest.split(), data_root)
            print("begun", flush=True)
        else:
            print(f"took {rounds.turn(int(rest))!r}", flush=True)


class Tree:
    """A checkout, whose courses are carried out by a process of its own."""

    def __init__(self, path: Path, data_root: Path) -> None:
        if not (path / "isthmus" / "__init__.py").is_file():
            raise SystemExit(f"{path}: no checkout of isthmus is there")
        script = Path(__file__).resolve()
        paths = f"import sys; sys.path[:0] = [{str(path.resolve())!r}, {str(script.parent)!r}]; "
        code = paths + f"from pathlib import Path; import against; against.serve(Path({str(data_root.resolve())!r}))"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=path,
            env={**{key: value for key, value in os.environ.items() if key != "PYTHONPATH"}, "OMP_NUM_THREADS": "1"},
        )

    def said(self, line: str) -> str:
        """Send a line and return the last word of the answer."""
        assert self.process.stdin is not None and self.process.stdout is not None
        print(line, file=self.process.stdin, flush=True)
        for answer in self.process.stdout:  # whatever else is printed on the way is passed over
            if answer.startswith(("begun", "took ")):
                return answer.split()[-1]
        raise SystemExit("a tree's process ended; what went wrong stands above")

    def turn(self, rounds: int) -> float:
        """Do some rounds and return the milliseconds of the processor for one."""
        return float(self.said(f"turn {rounds}"))

    def end(self) -> None:
        """Let the process end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def compare(name: str, num_clients: int, trees: dict[str, Tree], repeats: int, shortest: float) -> None:
    """Print a row of the table."""
    case = CASES[name]
    turns: dict[str, int] = {}
    for side, tree in trees.items():
        tree.said(f"begin {case.words} num_clients={num_clients}")
        tree.turn(2)  # builds what is kept from round to round
        turns[side] = max(1, round(1e3 * shortest / tree.turn(1)))
    times: dict[str, list[float]] = {side: [] for side in trees}
    order = list(trees)
    for _ in range(repeats):
        for side in order:
            times[side].append(trees[side].turn(turns[side]))
        order.append(order.pop(0))
    here, there = (statistics.median(times[side]) for side in ("here", "there"))
    ratios = [b / a for a, b in zip(times["here"], times["there"], strict=True)]
    then, wanted = case.then.get(num_clients), case.wanted.get(num_clients)
    scaled = "-" if then is None else short(then * here / there)
    row(name, num_clients, short(here), short(there), spread(ratios), then or "-", scaled, wanted or "-")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=Path, help="another checkout of the project")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="NAME")
    parser.add_argument("--clients", type=int, nargs="+", help="in the place of each course's own numbers of clients")
    parser.add_argument("--repeats", type=int, default=5, help="turns of each tree that count")
    parser.add_argument("--shortest", type=float, default=0.3, help="seconds of the processor that a turn takes, about")
    parser.add_argument("--data-root", type=Path, default=Path("data"), help="where datasets are that do not ship")
    chosen = parser.parse_args()
    here = Path(__file__).resolve().parent.parent
    trees = {"here": Tree(here, chosen.data_root), "there": Tree(chosen.tree, chosen.data_root)}
    heading("course", "clients", "here ms", "there ms", "there / here", "then", "now", "wanted")
    for name in chosen.only:
        for num_clients in chosen.clients or CASES[name].then:
            compare(name, num_clients, trees, chosen.repeats, chosen.shortest)
    for tree in trees.values():
        tree.end()


if __name__ == "__main__":
    main()

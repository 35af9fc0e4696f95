"""Tables 3 and 4 of FedGRL (Suresh et al., 2022): every method on every split; one pretraining serves all splits.

    python papers/fedgrl/tables.py twitch --data-root DATA --out results/fedgrl
    python papers/fedgrl/tables.py amazon --data-root DATA --out results/fedgrl --splits 10 --rounds 10000

Results are appended to OUT/NAME.csv (method, how it was trained, client, split, encoder seed, score) as they come; what
is there already is not computed again. The table is printed and written to OUT/NAME.md, the score by round of a
pretraining to OUT/NAME-METHOD-TRAINING-seedN-rounds.csv. Other rounds or another learning rate are rows of their own.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import isthmus
from isthmus.algorithms.fedgrl.downstream import Downstream, Finetune, Freeze
from isthmus.config.course import Course
from isthmus.config.load import load_course
from isthmus.core.codec import decode, encode
from isthmus.core.random import numpy_generator
from isthmus.core.record import Params, State
from isthmus.learn.graph_client import GraphClient
from isthmus.runs.simulation import Scenario, Simulation, load_scenario

FIELDS = ("method", "trained", "client", "split", "encoder_seed", "score")
SUPERVISED = {"name": "adamw", "lr": 0.01, "weight_decay": 1e-3}


@dataclass(frozen=True)
class Setting:
    """One table: its data, its split and what the search over views found."""

    dataset: dict[str, Any]
    splitter: dict[str, Any]
    num_clients: int
    masks: dict[str, Any]
    first: dict[str, float]
    second: dict[str, float]
    hidden: int = 128
    lr: float = 1e-4  # of the self-supervision


SETTINGS = {
    "twitch": Setting(
        {"name": "twitch", "features": "reduced"},
        {"name": "meta", "attribute": "country", "deal": "one_each"},
        6,
        {"name": "ratio", "train": 0.6, "val": 0.2, "test": 0.2},
        {"edges": 0.2, "features": 0.2},
        {"edges": 0.2, "features": 0.1},
    ),
    "amazon": Setting(
        {"name": "union", "datasets": ["amazon_computers", "amazon_photo"]},
        {"name": "meta", "attribute": "dataset", "deal": "one_each", "own_classes": True},
        2,
        {"name": "ratio", "train": 0.1, "val": 0.1, "test": 0.8},
        {"edges": 0.5, "features": 0.2},
        {"edges": 0.4, "features": 0.1},
    ),
    "mixed": Setting(
        {
            "name": "union",
            "datasets": [
                "amazon_computers",
                "amazon_photo",
                "coauthor_cs",
                "coauthor_physics",
                "citation_dblp",
                "cora_ml",
            ],
        },
        {"name": "meta", "attribute": "dataset", "deal": "one_each", "own_classes": True},
        6,
        {"name": "ratio", "train": 0.1, "val": 0.1, "test": 0.8},
        {"edges": 0.5, "features": 0.2},
        {"edges": 0.4, "features": 0.1},
    ),
}


def course(
    setting: Setting, algorithm: dict[str, Any], *, linear: bool = False, keep: str = "best", **changes: Any
) -> Course:
    """Return a course of a table; `linear` for a linear head, else a perceptron of 128."""
    decoder = {"name": "linear"} if linear else {"name": "mlp", "hidden": 128, "dropout": 0.0}
    gnn = {"name": "gcn", "hidden": setting.hidden, "layers": 2, "dropout": 0.0, "batch_norm": True}
    fields: dict[str, Any] = {
        "dataset": setting.dataset,
        "splitter": setting.splitter,
        "num_clients": setting.num_clients,
        "masks": setting.masks,
        "task": {"metrics": ["f1_micro", "accuracy", "loss"]},
        "stopping": {"metric": "f1_micro", "keep": keep},
        "model": {"gnn": gnn, "decoder": decoder, "activate": True},
        "algorithm": algorithm,
    }
    return load_course({**fields, **changes})


def self_supervised(setting: Setting, name: str, rounds: int, **changes: Any) -> dict[str, Any]:
    """Return the algorithm that learns encoders without labels, for so many rounds."""
    schedule = {"name": "cosine", "rounds": rounds, "warmup_rounds": rounds // 10}
    views = {"first": setting.first, "second": setting.second}
    return {
        "name": name,
        "objective": {"name": "bgrl", "rounds": rounds, **views},
        "downstream": {"name": "freeze"},
        "optimizer": {"name": "adamw", "lr": setting.lr, "weight_decay": 1e-5, "schedule": schedule},
        **changes,
    }


class Table:
    """The rows so far, on disk after each of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.rows: list[dict[str, str]] = []
        if path.is_file():
            with path.open(newline="") as file:
                self.rows = list(csv.DictReader(file))

    def has(self, method: str, trained: str, split: int, encoder_seed: int) -> bool:
        """Whether a method's scores on a split are there, trained in the same way."""
        wanted = (method, trained, str(split), str(encoder_seed))
        return any(
            tuple(row[name] for name in ("method", "trained", "split", "encoder_seed")) == wanted for row in self.rows
        )

    def add(self, method: str, trained: str, split: int, encoder_seed: int, scores: dict[str, float]) -> None:
        """Write a method's scores on a split."""
        new = not self.path.is_file()
        with self.path.open("a", newline="") as file:
            writer = csv.DictWriter(file, FIELDS)
            if new:
                writer.writeheader()
            for client, score in scores.items():
                facts = (method, trained, client, str(split), str(encoder_seed), f"{score:.6f}")
                row = dict(zip(FIELDS, facts, strict=True))
                writer.writerow(row)
                self.rows.append(row)
        mean = sum(scores.values()) / len(scores)
        print(f"{time.strftime('%H:%M:%S')} {method} split {split}: {mean:.4f}", flush=True)

    def markdown(self, names: dict[str, str]) -> str:
        """Return mean ± standard deviation over splits, by method and client."""
        methods = list(dict.fromkeys((row["method"], row["trained"]) for row in self.rows))
        lines = [
            "| method | trained | " + " | ".join(names.values()) + " | mean | splits |",
            "| --- | --- |" + " --- |" * (len(names) + 2),
        ]
        for method, trained in methods:
            mine = [row for row in self.rows if (row["method"], row["trained"]) == (method, trained)]
            cells, means = [], []
            for client in names:
                scores = np.array([float(row["score"]) for row in mine if row["client"] == client])
                means.append(scores.mean())
                cells.append(f"{100 * scores.mean():.1f} ± {100 * scores.std():.1f}")
            number = len({(row["split"], row["encoder_seed"]) for row in mine})
            lines.append(
                f"| {method} | {trained} | " + " | ".join(cells) + f" | {100 * np.mean(means):.1f} | {number} |"
            )
        return "\n".join(lines) + "\n"


def client_names(scenario: Scenario, setting: Setting) -> dict[str, str]:
    """Return what each client is called in a table: its country or dataset."""
    values = scenario.whole.attribute_names[setting.splitter["attribute"]]
    return dict(zip(scenario.parts, values, strict=True))


def with_split(scenario: Scenario, masks: Any, split: int) -> Scenario:
    """Return the same clients with masks of their own for a split."""
    parts = {name: masks.apply(part, numpy_generator(split, "split", name)) for name, part in scenario.parts.items()}
    return replace(scenario, parts=parts)


def downstream_scores(
    setting: Setting, scenario: Scenario, encoders: dict[str, Params], how: Downstream, split: int
) -> dict[str, float]:
    """Return every client's test score with its own head on a given encoder."""
    made = course(setting, {"name": "local_grl"}, linear=isinstance(how, Freeze), seed=split)
    simulation = Simulation(made, scenario)
    scores = {}
    for name, client in simulation.clients.items():
        assert isinstance(client, GraphClient)
        client.position = replace(client.position, seed=split)
        params = how.train(client, encoders[name])
        scores[name] = client.evaluate(params, ("test",))[0]["test"]["f1_micro"]
    return scores


def pretrained(
    setting: Setting, scenario: Scenario, algorithm: dict[str, Any], rounds: int, seed: int, out: Path, looks: int
) -> dict[str, Params]:
    """Return every client's encoder after the last round, from OUT when it was trained before.

    Its score by round is written down; no label has a part in which encoder it is.
    """
    path = out.with_name(f"{out.name}.isth")
    if path.is_file():
        return decode(path.read_bytes(), State)
    every = max(rounds // looks, 1)
    made = course(setting, algorithm, linear=True, keep="last", rounds=rounds, seed=seed, evaluate_every=every)
    result = isthmus.run(made, scenario=scenario)
    history = result.history
    columns = [name for name in history.columns if name in ("round", "val/f1_micro", "train/f1_micro")]
    history[columns].dropna().to_csv(out.with_name(f"{out.name}-rounds.csv"), index=False)
    seconds = [event["seconds"] for event in result.events if event["event"] == "round"]
    print(f"{out.name}: {np.median(seconds):.3f} s a round, {result.seconds:.0f} s in all", flush=True)
    encoders = {
        client: {name: tensor for name, tensor in params.items() if not name.startswith("decoder.")}
        for client, params in result.client_params.items()
    }
    path.write_bytes(encode(encoders))
    return encoders


def supervised(setting: Setting, scenario: Scenario, name: str, rounds: int, split: int) -> dict[str, float]:
    """Return every client's test score after supervised training, alone ("local") or together ("fedavg")."""
    algorithm = {"name": name, "local_steps": 1, "optimizer": SUPERVISED}
    # Heads stay with the clients, whose classes may differ; alone, nothing is shared anyway.
    changes: dict[str, Any] = {"rounds": rounds, "seed": split, "evaluate_every": 5, "shared": ["*", "!decoder.*"]}
    if name == "fedavg":
        algorithm |= {"keep_moments": True, "weighting": "nodes"}
    result = isthmus.run(course(setting, algorithm, **changes), scenario=scenario)
    return {client: scores["f1_micro"] for client, scores in result.client_scores.items()}


def both_terms(
    setting: Setting, scenario: Scenario, strength: float, rounds: int, split: int, gate: bool = False
) -> dict[str, float]:
    """Return every client's test score after learning protocol LP2."""
    algorithm = self_supervised(setting, "fedgrl", rounds, protocol="lp2", strength=strength, copy_gate=gate)
    algorithm |= {"optimizer": SUPERVISED, "downstream": {"name": "finetune"}}
    made = course(setting, algorithm, rounds=rounds, seed=split, evaluate_every=5)
    result = isthmus.run(made, scenario=scenario)
    return {client: scores["f1_micro"] for client, scores in result.client_scores.items()}


def main(arguments: list[str]) -> None:
    """Compute what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("setting", choices=SETTINGS)
    parser.add_argument("--data-root", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=Path("results/fedgrl"))
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=1000, help="rounds of self-supervision; the paper has 10,000")
    parser.add_argument("--supervised-rounds", type=int, default=500)
    parser.add_argument("--encoder-seed", type=int, default=0)
    parser.add_argument("--looks", type=int, default=10, help="how often the pretraining is evaluated")
    parser.add_argument("--lr", type=float, help="learning rate of self-supervision instead of the setting's")
    parser.add_argument("--lp2", type=float, nargs="*", default=[], help="strengths of LP2 to measure")
    parser.add_argument("--gate", action="store_true", help="LP2 with the copy gate of the paper's Fig. 1")
    parser.add_argument("--only", nargs="*", default=None, help="only methods whose names contain one of these")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    setting = SETTINGS[given.setting]
    if given.lr is not None:
        setting = replace(setting, lr=given.lr)
    table = Table(given.out / f"{given.setting}.csv")
    base = course(setting, {"name": "fedgrl"})
    from isthmus.core.outside import data_root

    scenario = load_scenario(base, data_root(given.data_root))
    names = client_names(scenario, setting)
    seed = given.encoder_seed

    def wanted(method: str) -> bool:
        return given.only is None or any(word in method for word in given.only)

    def encoders_of(prefix: str) -> dict[str, Params]:
        if prefix == "No-Fed-Rand-Init":
            simulation = Simulation(course(setting, {"name": "fedgrl"}, linear=True, seed=seed), scenario)
            return dict.fromkeys(scenario.parts, simulation.initial.params)
        name = "fedgrl" if prefix == "Fed-Self" else "local_grl"
        algorithm = self_supervised(setting, name, given.rounds)
        out = given.out / f"{given.setting}-{prefix.lower()}-{given.rounds}-{setting.lr:g}-seed{seed}"
        return pretrained(setting, scenario, algorithm, given.rounds, seed, out, given.looks)

    for prefix in ("No-Fed-Rand-Init", "No-Fed-Self", "Fed-Self"):
        for word, how in (("Freeze", Freeze()), ("Finetune", Finetune())):
            method = f"{prefix}-{word}"
            if not wanted(method) or (prefix == "No-Fed-Rand-Init" and word == "Finetune"):
                continue
            trained = "" if prefix == "No-Fed-Rand-Init" else f"{given.rounds} rounds, lr {setting.lr:g}"
            for split in range(given.splits):
                if not table.has(method, trained, split, seed):
                    parts = with_split(scenario, base.masks, split)
                    scores = downstream_scores(setting, parts, encoders_of(prefix), how, split)
                    table.add(method, trained, split, seed, scores)
    rounds = given.supervised_rounds
    trained = f"{rounds} rounds, lr {SUPERVISED['lr']:g}"
    for split in range(given.splits):
        parts = with_split(scenario, base.masks, split)
        for method, name in (("No-Fed-Sup", "local"), ("Fed-Sup", "fedavg")):
            if wanted(method) and not table.has(method, trained, split, seed):
                table.add(method, trained, split, seed, supervised(setting, parts, name, rounds, split))
        for strength in given.lp2:
            method = f"LP2, lambda {strength:g}" + (", gate" if given.gate else "")
            if wanted(method) and not table.has(method, trained, split, seed):
                table.add(method, trained, split, seed, both_terms(setting, parts, strength, rounds, split, given.gate))
    text = table.markdown(names)
    (given.out / f"{given.setting}.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main(sys.argv[1:])

"""What methods give away: attacks x methods x guards, each beside the guess of who sees nothing.

    python benchmarks/leakage.py --data-root DATA --out FOLDER [--only words ...] [--seeds 5] [--workers 1] [--quick]

Each section is an audit (`isthmus audit`) on Cora and CiteSeer with 5 and with 50 clients, as `SECTIONS` says; FOLDER
keeps what is finished, and a campaign that was stopped goes on where it was. Prints Markdown. No setting of an attack
was chosen by its score here, but for the number of shadows: 64 in place of the default, as many as an hour allows.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from guarding.dp import HEAD, node_dp_within

import isthmus as ist
from isthmus.algorithms import FedGAP, FedGL
from isthmus.attacks import Attack, FeatureSpan, LabelShares, LinksFromRows, Lira, LossThreshold, Vocabulary
from isthmus.attacks.audit.running import carry_out
from isthmus.attacks.audit.spec import Audit, Guards
from isthmus.attacks.audit.table import attack_table, cost_table, findings
from isthmus.data.dataset import Dataset
from isthmus.data.dividing import RatioSplit
from isthmus.data.zoo.cora import Cora
from isthmus.data.zoo.planetoid import CiteSeer
from isthmus.learn.optimizers import SGD, Adam
from isthmus.privacy import ClientDP, Quantise, RowNoise, SecureSum

DATASETS: dict[str, Dataset] = {"cora": Cora(), "citeseer": CiteSeer()}
CLIENTS = (5, 50)


@dataclass(frozen=True)
class Section:
    """What is attacked, how, and under which guards."""

    what: str
    course: Callable[..., ist.Course]
    attacks: tuple[Attack, ...]
    lines: tuple[Guards, ...]


def four_steps(**fields: object) -> ist.Course:
    """Return FedAvg as it is by default."""
    return ist.Course(rounds=100, evaluate_every=10, **fields)


def one_step(**fields: object) -> ist.Course:
    """Return FedAvg with one step of plain SGD a round."""
    algorithm = ist.FedAvg(local_steps=1, optimizer=SGD(lr=0.25))
    return ist.Course(rounds=100, evaluate_every=10, algorithm=algorithm, **fields)


def alike(**fields: object) -> ist.Course:
    """Return FedAvg in which each client counts as one, as noise on clients wants it."""
    return ist.Course(rounds=100, evaluate_every=10, algorithm=ist.FedAvg(weighting="uniform"), **fields)


HALF = RatioSplit(train=0.5, val=0.1, test=0.4)


def half(**fields: object) -> ist.Course:
    """Return FedAvg where half of the nodes are trained on."""
    return ist.Course(rounds=100, evaluate_every=100, masks=HALF, **fields)


def gap(**fields: object) -> ist.Course:
    """Return GAP where half of the nodes are trained on, one step a round."""
    algorithm = FedGAP(encoder_rounds=30, local_steps=1, optimizer=Adam(lr=0.02), weighting="uniform")
    return ist.Course(rounds=30, evaluate_every=30, masks=HALF, algorithm=algorithm, model=HEAD, **fields)


def fedgl(**fields: object) -> ist.Course:
    """Return FedGL as it is by default."""
    return ist.Course(rounds=100, evaluate_every=10, algorithm=FedGL(), **fields)


MEMBERS = (LossThreshold(), Lira(shadows=64))
SECTIONS: dict[str, Section] = {
    "words": Section(
        "FedAvg, four steps: one update of each client",
        four_steps,
        (Vocabulary(), LabelShares()),
        ((), (Quantise(bits=8),), (SecureSum(),)),
    ),
    "step": Section(
        "FedAvg, one step: one gradient of each client",
        one_step,
        (LabelShares(), FeatureSpan()),
        ((), (Quantise(bits=8),), (SecureSum(),)),
    ),
    "noise": Section(
        "FedAvg, four steps, noise on whole clients that each adds itself",
        alike,
        (Vocabulary(),),
        ((), (ClientDP(clip=0.1, noise=1.0, mode="local"),)),
    ),
    "links": Section("FedGL: predictions and embeddings", fedgl, (LinksFromRows(),), ((), (RowNoise(noise=1.0),))),
    "members": Section("FedAvg, half of the nodes trained on", half, MEMBERS, ((),)),
    "members_gap": Section("GAP, half of the nodes trained on", gap, MEMBERS, ((), (node_dp_within(8.0),))),
}


def main() -> None:
    """Carry the sections out that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), metavar="SECTION")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=1, help="processes for shadows")
    parser.add_argument("--out", type=Path, required=True, help="a folder for what is finished")
    parser.add_argument("--data-root", type=Path, help="a folder with datasets")
    parser.add_argument("--quick", action="store_true", help="one seed of Cora with 5 clients")
    words = parser.parse_args()
    torch.set_num_threads(1)
    for name in words.only:
        section = SECTIONS[name]
        print(f"\n## {section.what}\n", flush=True)
        for dataset, part in DATASETS.items() if not words.quick else [("cora", DATASETS["cora"])]:
            for clients in CLIENTS if not words.quick else CLIENTS[:1]:
                course = section.course(dataset=part, num_clients=clients)
                seeds = tuple(range(1 if words.quick else words.seeds))
                made = Audit(course, section.attacks, section.lines, seeds)
                folder = words.out / f"{name}-{dataset}-{clients}"
                carried = carry_out(made, folder, data_root=words.data_root, workers=words.workers)
                print(f"### {dataset}, {clients} clients\n\n{attack_table(list(findings(carried))).markdown()}")
                print(cost_table(carried).markdown(), flush=True)


if __name__ == "__main__":
    main()

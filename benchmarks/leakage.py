"""What methods give away: attacks x methods x guards, each beside the guess of who sees nothing.

    python benchmarks/leakage.py --data-root DATA --out FOLDER [--only words ...] [--seeds 5] [--workers 1] [--quick]
    python benchmarks/leakage.py --every --out FOLDER [--methods fedgl ...]        all methods x attacks x guards

Each section is an audit (`isthmus audit`) of each of its datasets with each of its numbers of clients; those of
`leaking/` are named by `--help`. FOLDER keeps what is finished, and a campaign that was stopped goes on where it was.
Prints Markdown.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from leaking import every, inputs, links, malice, members, methods, properties, rebuilding
from leaking.section import Section

from isthmus.algorithms import ALGORITHMS
from isthmus.attacks.audit.running import carry_out
from isthmus.attacks.audit.spec import Audit
from isthmus.attacks.audit.table import attack_table, cost_table, findings

SECTIONS: dict[str, Section] = {
    **inputs.SECTIONS,
    **rebuilding.SECTIONS,
    **links.SECTIONS,
    **members.SECTIONS,
    **methods.SECTIONS,
    **properties.SECTIONS,
    **malice.SECTIONS,
}


def main() -> None:
    """Carry the sections out that were asked for."""
    told = "\n".join(f"    {name:14} {section.what}" for name, section in SECTIONS.items())
    parser = argparse.ArgumentParser(
        description=f"{__doc__}\nSections:\n{told}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), metavar="SECTION")
    parser.add_argument("--every", action="store_true", help="in place of sections: every method, attack and guard")
    parser.add_argument("--methods", nargs="+", choices=ALGORITHMS, metavar="METHOD", help="with --every: these alone")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=1, help="processes for shadows")
    parser.add_argument("--out", type=Path, required=True, help="a folder for what is finished")
    parser.add_argument("--data-root", type=Path, help="a folder with datasets")
    parser.add_argument("--quick", action="store_true", help="one seed of the first dataset with the fewest clients")
    words = parser.parse_args()
    torch.set_num_threads(1)
    if words.every:
        every.show(words)
        return
    for name in words.only:
        show(name, words)


def show(name: str, words: argparse.Namespace) -> None:
    """Carry a section out and print its tables."""
    section = SECTIONS[name]
    print(f"\n## {section.what}\n", flush=True)
    first = 1 if words.quick else None
    seeds = tuple(range(first or words.seeds))
    for dataset, part in list(section.datasets.items())[:first]:
        for clients in section.clients[:first]:
            course = section.course(dataset=part, num_clients=clients)
            made = Audit(course, section.attacks, section.lines, seeds)
            folder = words.out / f"{name}-{dataset}-{clients}"
            carried = carry_out(made, folder, data_root=words.data_root, workers=words.workers, load=section.load)
            print(f"### {dataset}, {clients} clients\n\n{attack_table(list(findings(carried))).markdown()}")
            print(cost_table(carried).markdown(), flush=True)
            if section.layout is not None:
                print(section.layout(carried).markdown(), flush=True)


if __name__ == "__main__":
    main()

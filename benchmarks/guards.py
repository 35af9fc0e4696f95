"""What guards cost, and what they are worth: sections with tables of their own.

    python benchmarks/guards.py [SECTION ...] [--quick] [--seeds 5] [--repeats 5] [--data-root DATA] [--out FOLDER]
    python benchmarks/guards.py secure_sum --clients 10 --sizes "1 MB" --where processes --repeats 15      one row

Each section is a module of `guarding/`, whose head says what its tables show; `--quick` takes tiny sizes, to see that
it works. One thread of torch.
"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

import torch
from guarding.settings import PLACES, SIZES, TABLES, Settings

# Section -> what it answers; its module in `guarding/` has a function `show(settings)` that prints markdown.
SECTIONS = {
    "cost": "milliseconds and bytes of an exchange, for each guard",
    "codecs": "how fast tensors are put into fewer bytes and come back",
    "compression": "accuracy against bytes, for guards that code",
    "dp": "accuracy against epsilon, for each thing that noise can hide",
    "poison": "accuracy when clients poison a course, for each fold and check",
    "secure_sum": "milliseconds and bytes of a secure sum beside the same exchange without it",
}


def main() -> None:
    """Show the sections that were asked for."""
    told = "\n".join(f"    {name:14} {what}" for name, what in SECTIONS.items())
    parser = argparse.ArgumentParser(
        description=f"{__doc__}\nSections:\n{told}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sections", nargs="*", metavar="SECTION", help="all, if none is named")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), metavar="SECTION")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    parser.add_argument("--seeds", type=int, default=5, help="how many seeds where something is trained: 0, 1, ...")
    parser.add_argument("--repeats", type=int, default=5, help="how often a time is taken; the median is shown")
    parser.add_argument("--clients", type=int, nargs="+", default=[], metavar="N", help="of how many clients alone")
    parser.add_argument(
        "--sizes", nargs="+", default=[], choices=SIZES, metavar="SIZE", help=f"alone: {', '.join(SIZES)}"
    )
    parser.add_argument("--lines", nargs="+", default=[], metavar="GUARDS", help="of cost: these rows alone")
    parser.add_argument("--where", choices=PLACES, help="of secure_sum: only here, or only between processes")
    parser.add_argument(
        "--tables", nargs="+", default=[], choices=TABLES, metavar="TABLE", help=f"of dp: {', '.join(TABLES)}"
    )
    parser.add_argument(
        "--datasets", nargs="+", default=[], metavar="NAME", help="of dp's edges and nodes, these alone"
    )
    parser.add_argument("--out", type=Path, help="a folder for what is finished: what was stopped goes on from there")
    parser.add_argument("--data-root", type=Path, help="a folder with datasets, where a section needs one")
    words = vars(parser.parse_args())
    strange = sorted({*words["sections"]} - {*SECTIONS})
    if strange:
        parser.error(f"there is no section {strange[0]!r}; choose from {', '.join(SECTIONS)}")
    torch.set_num_threads(1)
    named, only = words.pop("sections"), words.pop("only")
    for name in ("clients", "sizes", "lines", "tables", "datasets"):
        words[name] = tuple(words[name])
    chosen = named or only
    for name in chosen:
        print(f"\n## {name}: {SECTIONS[name]}\n", flush=True)
        importlib.import_module(f"guarding.{name}").show(Settings(**words))


if __name__ == "__main__":
    main()

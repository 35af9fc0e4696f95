"""Seconds and bytes of matching ids that silos have in common, without a secret of all silos and with one.

    python benchmarks/psi.py [--ids 100000] [--silos 2 3 5] [--shared 0.5] [--seed 0] [--openmined]

Silos and server are in this process and take turns: what is told are the processor seconds that one silo's work takes.
All messages pass through bytes and are signed by certificates. `ring` is private matching
(`isthmus.sites.silo.matching`), `keyed` a hash of each id with a secret that all silos were given; bytes are those that
one silo sends, and as many come to it. With `--openmined`, the package openmined-psi (extra `psi`) finds the ids that
two silos have in common, for comparison: one of them learns which they are. One thread.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from timing import heading, row, short

from isthmus.core.codec import decode, encode
from isthmus.data.folders.own_folder import OwnData
from isthmus.sites.courses.messages import NO_POINTS, Passed, PassOn
from isthmus.sites.parties.kit import make_federation, open_kit
from isthmus.sites.silo.consent import Identity
from isthmus.sites.silo.hand import Hand
from isthmus.sites.silo.identities import node_keys
from isthmus.sites.silo.matching import Matching

COURSE = "ab" * 16


def ids_of(num_silos: int, number: int, shared: float, seed: int) -> dict[str, tuple[str, ...]]:
    """Return each silo's ids: a part of them that all silos have, and others that nobody else has."""
    draw, found = Random(seed), {}
    common = [f"customer-{place:09}" for place in range(int(shared * number))]
    for silo in range(num_silos):
        own = [*common, *(f"of silo {silo}: {place:09}" for place in range(number - len(common)))]
        draw.shuffle(own)
        found[f"silo-{silo}"] = tuple(own)
    return found


def clocked(work: Callable[[], Any], seconds: dict[str, float], silo: str) -> Any:
    started = time.process_time()
    found = work()
    seconds[silo] += time.process_time() - started
    return found


def ring(ids: dict[str, tuple[str, ...]], folder: Path) -> tuple[dict[str, float], float, dict[str, set[int]]]:
    """Return each silo's seconds, the bytes that one sends, and the keys."""
    kits = make_federation(folder / "federation", "localhost:1", list(ids))
    silos, seconds = {}, dict.fromkeys(ids, 0.0)
    for name, own in ids.items():
        kit = open_kit(kits[name], "site")
        data: Any = OwnData(None, {"id": own}, own)
        hand = Hand(Identity(kit.root, kit.certificate, kit.key))
        make = lambda name=name, data=data, hand=hand: Matching(name, COURSE, data, folder / name, hand)  # noqa: E731
        silos[name] = clocked(make, seconds, name)
    names, sent = tuple(sorted(ids)), 0
    handed = dict.fromkeys(names, NO_POINTS)
    for step in range(len(names) + 1):
        came = {}
        for place, name in enumerate(names):
            request = encode(PassOn(COURSE, "one", names, step, handed[names[place - 1]]))

            def answer(name: str = name, request: bytes = request) -> bytes:
                return encode(Passed("", silos[name].passed(decode(request, PassOn))))

            back = clocked(answer, seconds, name)
            sent += len(back)
            came[name] = decode(back, Passed).handed
        handed = came
    keys = {name: set(silos[name].keys()[0].tolist()) for name in names}  # type: ignore[union-attr]
    return seconds, sent / len(names), keys


def keyed(ids: dict[str, tuple[str, ...]]) -> tuple[dict[str, float], dict[str, set[int]]]:
    """Return the same of keyed hashes, which need no messages."""
    seconds = dict.fromkeys(ids, 0.0)
    keys = {
        name: set(clocked(lambda own=own: node_keys(own, bytes(32)), seconds, name).tolist())
        for name, own in ids.items()
    }
    return seconds, keys


def openmined(ids: dict[str, tuple[str, ...]]) -> tuple[dict[str, float], float, int]:
    """Return the same of openmined-psi between the first two silos, with the size of what they have in common."""
    import private_set_intersection.python as psi

    (one, mine), (two, theirs) = list(ids.items())[:2]
    seconds = {one: 0.0, two: 0.0}
    client, server = psi.client.CreateWithNewKey(True), psi.server.CreateWithNewKey(True)
    setup = clocked(lambda: server.CreateSetupMessage(1e-9, len(mine), theirs, psi.DataStructure.GCS), seconds, two)
    request = clocked(lambda: client.CreateRequest(mine), seconds, one)
    response = clocked(lambda: server.ProcessRequest(request), seconds, two)
    found = clocked(lambda: client.GetIntersection(setup, response), seconds, one)
    sizes = [len(message.SerializeToString()) for message in (setup, request, response)]
    return seconds, sum(sizes) / 2, len(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ids", type=int, default=100_000, help="of each silo")
    parser.add_argument("--silos", type=int, nargs="+", default=[2, 3, 5])
    parser.add_argument("--shared", type=float, default=0.5, help="which part of them all silos have")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--openmined", action="store_true")
    chosen = parser.parse_args()
    heading("way", "silos", "ids of each", "in common", "s of one silo", "range", "MB that one sends", "bytes an id")
    for number in chosen.silos:
        ids = ids_of(number, chosen.ids, chosen.shared, chosen.seed)
        with tempfile.TemporaryDirectory(prefix="isthmus-") as scratch:
            seconds, sent, keys = ring(ids, Path(scratch))
        show("ring", ids, seconds, sent, len(set.intersection(*keys.values())))
        seconds, keys = keyed(ids)
        show("keyed", ids, seconds, 0.0, len(set.intersection(*keys.values())))
        if chosen.openmined and number == 2:
            show("openmined-psi", ids, *openmined(ids))


def show(way: str, ids: dict[str, tuple[str, ...]], seconds: dict[str, float], sent: float, common: int) -> None:
    each, number = list(seconds.values()), len(next(iter(ids.values())))
    spread = f"{short(min(each))} to {short(max(each))}"
    row(
        way,
        len(ids),
        f"{number:,}",
        f"{common:,}",
        short(sum(each) / len(each)),
        spread,
        f"{sent / 1e6:.2f}",
        short(sent / number),
    )


if __name__ == "__main__":
    main()

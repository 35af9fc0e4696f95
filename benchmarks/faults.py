"""How long faults between sites take to be noticed and mended, on the real engine, on loopback.

    python benchmarks/faults.py [--repeats 5]

Prints medians in seconds: a silo killed with -9 until the server knows, a silo started until it is connected, a server
started again until all silos are back.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import isthmus as ist
from isthmus.federation.kit import SERVER, open_kit
from isthmus.federation.rehearsal import Rehearsal
from isthmus.federation.server import Server


def seconds_until(done: Callable[[], bool], limit: float = 60.0) -> float:
    started = time.perf_counter()
    while not done():
        if time.perf_counter() - started > limit:
            raise TimeoutError(f"not within {limit} s")
        time.sleep(0.002)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    noticed, returned, rejoined = [], [], []
    with Rehearsal(ist.Course(num_clients=3), say=lambda text: None) as rehearsal:
        assert rehearsal.server is not None
        seconds_until(lambda: len(rehearsal.server.hub.connected()) == 3)
        for number in range(repeats):
            site = f"client-{number % 3}"
            rehearsal.silos[site].kill()
            noticed.append(seconds_until(lambda site=site: site not in rehearsal.server.hub.connected()))
            rehearsal.silos[site].wait()
            rehearsal.start(site)
            returned.append(seconds_until(lambda site=site: site in rehearsal.server.hub.connected()))
        for _ in range(repeats):
            rehearsal.server.stop()
            time.sleep(1.0)
            kit = open_kit(rehearsal.kits[SERVER], "server")
            rehearsal.server = Server(kit, interface="localhost", say=lambda text: None)
            rejoined.append(seconds_until(lambda: len(rehearsal.server.hub.connected()) == 3))
    print("| fault | median s | range |")
    print("| --- | --- | --- |")
    for name, times in {
        "a silo killed with -9, until the server knows": noticed,
        "a silo started again (Python and torch included), until it is connected": returned,
        "the server stopped and started again, until all three silos are back": rejoined,
    }.items():
        print(f"| {name} | {statistics.median(times):.2f} | {min(times):.2f} to {max(times):.2f} |")


if __name__ == "__main__":
    main()

"""Milliseconds per exchange between sites, codec and engine apart; bytes on the wire; memory of a silo.

    python benchmarks/exchanges.py [--sites 3 10] [--repeats 20]

Server and silos are processes on loopback with mutual TLS. Each exchange sends every silo a record of the given size
and gets one of the same size back. Medians; the time of an exchange includes TLS, delivery and the way back.
"""

from __future__ import annotations

import argparse
import queue
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from isthmus.core.codec import decode, encode
from isthmus.core.protocol import Failure, ModelState
from isthmus.runtime.flare.link import Credentials, Link, LinkHub
from isthmus.sites.parties.kit import SERVER, Kit, make_federation, open_kit
from isthmus.sites.up import free_port

SIZES = {"10 KB": 10_000, "1 MB": 1_000_000, "50 MB": 50_000_000}


def credentials(kit: Kit) -> Credentials:
    return Credentials(kit.root, kit.certificate, kit.key)


def echo(path: Path) -> None:
    """Be a silo that decodes every request and answers with the same record."""
    kit = open_kit(path, "site")
    inbox: queue.Queue[tuple[str, bytes]] = queue.Queue()
    address = f"{kit.host}:{kit.port}"
    link = Link(kit.party, address, credentials(kit), {SERVER}, lambda p, k, ident, data: inbox.put((ident, data)))
    while True:
        ident, data = inbox.get()
        link.send(SERVER, "answer", ident, encode(decode(data, ModelState)))


def loopback_bytes() -> int:
    line = next(line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:"))
    return int(line.split(":")[1].split()[8])


def resident_megabytes(pid: int) -> float:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1000


def codec_milliseconds(record: ModelState, repeats: int) -> float:
    """Return the median of encoding and decoding a record once."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        decode(encode(record), ModelState)
        times.append(1e3 * (time.perf_counter() - started))
    return statistics.median(times)


def measure(num_sites: int, repeats: int) -> None:
    sites = [f"site-{number}" for number in range(num_sites)]
    with tempfile.TemporaryDirectory() as scratch:
        kits = make_federation(Path(scratch) / "federation", f"localhost:{free_port()}", sites)
        kit = open_kit(kits[SERVER], "server")
        hub = LinkHub(f"0:{kit.port}", credentials(kit), set(sites))
        processes = [subprocess.Popen([sys.executable, __file__, "--echo", str(kits[site])]) for site in sites]
        try:
            while len(hub.connected()) < num_sites:
                time.sleep(0.05)
            for name, size in SIZES.items():
                record = ModelState({"w": torch.zeros(size // 4)})
                report(hub, sites, name, record, max(3, repeats // (8 if size > 10_000_000 else 1)), processes[0].pid)
        finally:
            for process in processes:
                process.kill()
                process.wait()
            hub.stop()


def report(hub: LinkHub, sites: list[str], name: str, record: ModelState, repeats: int, pid: int) -> None:
    message = encode(record)
    times, wire = [], []
    for number in range(repeats + 2):
        before, started = loopback_bytes(), time.perf_counter()
        answers = list(hub.ask("exchange", dict.fromkeys(sites, message), 120))
        took = 1e3 * (time.perf_counter() - started)
        assert not any(isinstance(answer, Failure) for _, answer in answers), answers
        if number >= 2:  # the first two warm up
            times.append(took)
            wire.append((loopback_bytes() - before) / (2 * len(sites) * len(message)))
    codec = codec_milliseconds(record, repeats)
    facts = [
        str(len(sites)),
        name,
        f"{statistics.median(times):.1f}",
        f"{min(times):.1f} to {max(times):.1f}",
        f"{codec:.2f}",
        f"{statistics.median(wire):.3f}",
        f"{resident_megabytes(pid):.0f}",
    ]
    print(f"| {' | '.join(facts)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, nargs="+", default=[3, 10])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--echo", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.echo:
        echo(chosen.echo)
    print(
        "| sites | record | ms per exchange | range | codec ms | bytes on the wire / bytes of the records | silo MB |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for number in chosen.sites:
        measure(number, chosen.repeats)


if __name__ == "__main__":
    main()

"""What `make install` installs: every package by version (constraints.txt), and by its files' hashes (locked/).

    python tools/constraints.py --check     what is installed is what is pinned, and what is pinned is what is locked
    python tools/constraints.py --write     pin what is installed, with the hashes that pip's package index states

constraints.txt can be given to pip anywhere: `pip install -c constraints.txt 'isthmus[sites]'`. The files in locked/
say the same with hashes, which pip then requires of every file it takes: build.txt first, with what builds packages,
then packages.txt. torch is in neither, for its CPU and CUDA builds have one version and different files; it is pinned
by version.

Hashes are kept of wheels for Python 3.11 to 3.14 on Linux (x86_64, aarch64) and macOS (arm64), and of the source of a
package that has no wheels.
"""

from __future__ import annotations

import argparse
import re
import sys
import urllib.request
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distributions
from pathlib import Path
from urllib.parse import unquote

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
LOCKED = ROOT / "locked"

UNHASHED = "torch"
BUILDERS = ("setuptools",)
NOT_OURS = ("isthmus", "pip")
# What only the CUDA builds of torch bring.
OF_CUDA = re.compile(r"nvidia-|triton$|cuda-")
PYTHONS = ("py3", "cp311", "cp312", "cp313", "cp314")
PLATFORMS = re.compile(r"any|manylinux\w*_(x86_64|aarch64)|macosx_\w+_(arm64|universal2)")

Pins = Mapping[str, str]

HEAD = """\
# Every package that `make install` installs. Written by tools/constraints.py, which also checks it.
# torch is pinned so that a machine that has the CPU wheel at hand takes it.
"""
LOCKED_HEAD = "# Written by tools/constraints.py: the files that `make install` accepts of each package but torch.\n"


def installed() -> dict[str, str]:
    """Return the packages of this environment with their versions; torch's without its build."""
    found = {canonicalize_name(one.metadata["Name"]): one.version.split("+")[0] for one in distributions()}
    return {name: version for name, version in found.items() if name not in NOT_OURS}


def pins(text: str) -> dict[str, str]:
    """Return the packages of a file of constraints or requirements with their versions.

    One that allows several has what it says in place of a version, which no version is equal to.
    """
    lines = re.sub(r"\\\n", " ", text).splitlines()
    wanted = [Requirement(re.sub(r"\s--hash.*", "", line)) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(one.name): _only_version(one) for one in wanted}


def _only_version(wanted: Requirement) -> str:
    exact = [one.version for one in wanted.specifier if one.operator == "==" and not one.version.endswith(".*")]
    return exact[0] if exact and len(wanted.specifier) == 1 else str(wanted.specifier) or "no version"


def problems(found: Pins, pinned: Pins, locked: Mapping[str, tuple[str, int]]) -> list[str]:
    """Say all that differs between what is installed, pinned and locked (version, number of hashes)."""
    said = []
    for name in sorted({*found, *pinned}):
        if name not in pinned:
            if not OF_CUDA.match(name):
                said.append(f"{name} {found[name]} is installed and constraints.txt does not pin it")
        elif name not in found:
            said.append(f"{name} {pinned[name]} is in constraints.txt and is not installed")
        elif found[name] != pinned[name]:
            said.append(f"{name} {found[name]} is installed, but constraints.txt says {pinned[name]}")
    for name in sorted({*pinned, *locked} - {UNHASHED}):
        version, num_hashes = locked.get(name, (None, 0))
        if version != pinned.get(name) or num_hashes == 0:
            said.append(f"{name}: constraints.txt says {pinned.get(name)}, locked/ {version} with {num_hashes} hashes")
    return said


def lock_of(text: str) -> dict[str, tuple[str, int]]:
    """Return the packages of a locked file with version and number of hashes."""
    counts = {
        canonicalize_name(entry.split("==")[0]): entry.count("--hash=sha256:")
        for entry in re.split(r"\n(?=\w)", text)
        if "==" in entry
    }
    return {name: (version, counts.get(name, 0)) for name, version in pins(text).items()}


def hashes(name: str, version: str) -> list[str]:
    """Return the hashes of the files of a release that are kept, as pip's package index states them."""
    from pip._internal.models.index import PyPI

    with urllib.request.urlopen(f"{PyPI.simple_url}/{name}/", timeout=60) as page:
        files = re.findall(r'href="[^"#]*/([^"#/]+)#sha256=([0-9a-f]{64})"', page.read().decode())
    return chosen_hashes(((unquote(file), digest) for file, digest in files), version)


def chosen_hashes(files: Iterable[tuple[str, str]], version: str) -> list[str]:
    """Return the hashes of a release's wheels for our Pythons and platforms, or else of its source."""
    wheels, sources = [], []
    for file, digest in files:
        if file.endswith(".whl") and f"-{version}-" in file:
            tags = parse_wheel_filename(file)[3]
            if any((t.interpreter in PYTHONS or t.abi == "abi3") and PLATFORMS.fullmatch(t.platform) for t in tags):
                wheels.append(digest)
        elif file.endswith(f"-{version}.tar.gz"):
            sources.append(digest)
    return sorted(wheels or sources)


def write() -> None:
    """Write constraints.txt and the locked files from what is installed."""
    found = installed()
    names = sorted(set(found) - {UNHASHED})
    with ThreadPoolExecutor(8) as pool:
        digests = dict(zip(names, pool.map(lambda name: hashes(name, found[name]), names), strict=True))
    CONSTRAINTS.write_text(HEAD + "".join(f"{name}=={found[name]}\n" for name in sorted(found)))
    LOCKED.mkdir(exist_ok=True)
    for file, mine in (("build.txt", BUILDERS), ("packages.txt", [name for name in names if name not in BUILDERS])):
        entries = (
            f"{name}=={found[name]}" + "".join(f" \\\n    --hash=sha256:{digest}" for digest in digests[name]) + "\n"
            for name in mine
        )
        (LOCKED / file).write_text(LOCKED_HEAD + "".join(entries))


def check() -> list[str]:
    """Say all that is wrong with the files in the light of what is installed."""
    locked: dict[str, tuple[str, int]] = {}
    for file in sorted(LOCKED.glob("*.txt")):
        locked |= lock_of(file.read_text())
    return problems(installed(), pins(CONSTRAINTS.read_text()), locked)


def main() -> None:
    """Check or write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    either = parser.add_mutually_exclusive_group(required=True)
    either.add_argument("--check", action="store_true", help="exit with 1 where installed, pinned and locked differ")
    either.add_argument("--write", action="store_true", help="pin what is installed")
    if parser.parse_args().write:
        write()
    found = check()
    print("\n".join(found) or f"{len(installed())} packages are installed as pinned and locked")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()

"""What is installed is what is pinned and locked, and what must be installed is free of copyleft."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from email.message import Message
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"tools_{name}", ROOT / "tools" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


constraints, licences = tool("constraints"), tool("licences")


def test_everything_that_is_installed_is_pinned_and_locked_and_nothing_else() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "constraints.py"), "--check"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


LOCK = {"numpy": ("2.4.6", 3)}


@pytest.mark.parametrize(
    ("found", "pinned", "locked", "said"),
    [
        ({"numpy": "2.4.6", "left-pad": "1.0"}, {"numpy": "2.4.6"}, LOCK, "left-pad 1.0 is installed and constraints"),
        ({}, {"numpy": "2.4.6"}, LOCK, "numpy 2.4.6 is in constraints.txt and is not installed"),
        ({"numpy": "2.4.7"}, {"numpy": "2.4.6"}, LOCK, "numpy 2.4.7 is installed, but constraints.txt says 2.4.6"),
        ({"numpy": "2.4.6"}, {"numpy": "2.4.6"}, {"numpy": ("2.4.5", 3)}, "numpy: constraints.txt says 2.4.6, locked/"),
        ({"numpy": "2.4.6"}, {"numpy": "2.4.6"}, {"numpy": ("2.4.6", 0)}, "2.4.6 with 0 hashes"),
        ({"numpy": "2.4.6"}, {"numpy": "2.4.6"}, {}, "locked/ None with 0 hashes"),
        (
            {"numpy": "2.4.6"},
            {"numpy": "2.4.6"},
            {**LOCK, "left-pad": ("1.0", 1)},
            "left-pad: constraints.txt says None",
        ),
    ],
)
def test_each_difference_is_told(found: Any, pinned: Any, locked: Any, said: str) -> None:
    told = constraints.problems(found, pinned, locked)
    assert len(told) == 1 and said in told[0]


def test_torch_needs_no_hash_and_its_other_build_may_bring_packages_of_its_own() -> None:
    found = {"torch": "2.13.0", "nvidia-cublas-cu12": "1", "triton": "3"}
    assert constraints.problems(found, {"torch": "2.13.0"}, {}) == []


def test_files_for_other_pythons_and_platforms_are_not_accepted() -> None:
    files = {
        "pack-1.0-cp311-cp311-manylinux_2_28_x86_64.whl": "a",
        "pack-1.0-cp38-abi3-manylinux2014_aarch64.whl": "b",
        "pack-1.0-cp310-cp310-manylinux_2_28_x86_64.whl": "old python",
        "pack-1.0-cp311-cp311-win32.whl": "other platform",
        "pack-1.0.1-py3-none-any.whl": "other version",
        "pack-1.0.tar.gz": "source",
    }
    assert constraints.chosen_hashes(files.items(), "1.0") == ["a", "b"]
    assert constraints.chosen_hashes({"pack-1.0.tar.gz": "source"}.items(), "1.0") == ["source"]


def test_a_locked_file_is_read_with_its_hashes_counted() -> None:
    text = "# head\nruamel.yaml==1.0 \\\n    --hash=sha256:00 \\\n    --hash=sha256:11\nb==2\n"
    assert constraints.lock_of(text) == {"ruamel-yaml": ("1.0", 2), "b": ("2", 0)}
    assert constraints.pins("# head\nTorch_Geometric==2.8.1\n") == {"torch-geometric": "2.8.1"}


@pytest.mark.parametrize("loose", ["numpy>=2.4.6", "numpy~=2.4.6", "numpy==2.4.*", "numpy==2.4.6,!=2.4.7", "numpy"])
def test_a_pin_that_is_loosened_is_told_although_what_is_installed_would_do(loose: str) -> None:
    pinned = constraints.pins(f"{loose}\n")
    told, *_ = constraints.problems({"numpy": "2.4.6"}, pinned, LOCK)
    assert "numpy 2.4.6 is installed, but constraints.txt says" in told
    assert constraints.lock_of(f"{loose} \\\n    --hash=sha256:00\n") != {"numpy": ("2.4.6", 1)}


def test_the_files_name_no_host() -> None:
    for file in (ROOT / "constraints.txt", *(ROOT / "locked").iterdir()):
        assert not re.search(r"https?:|file:|--index|--extra|--find", file.read_text()), file


def test_no_package_that_must_be_installed_is_under_the_gpl() -> None:
    needed = licences.needed()
    assert {"torch", "scikit-network"} <= set(needed)
    assert [package for package in needed.values() if package.copyleft or package.licence == "not stated"] == []


def test_the_page_of_licences_is_that_of_the_packages_installed() -> None:
    if any(constraints.OF_CUDA.match(name) for name in constraints.installed()):
        pytest.skip("torch's CUDA build brings packages of its own, which the page does not list")
    assert licences.page() == licences.PAGE.read_text()


@pytest.mark.parametrize(
    ("licence", "copyleft"),
    [
        ("GPL-3.0-or-later", True),
        ("GNU General Public License (GPL)", True),
        ("GNU Affero General Public License v3", True),
        ("MIT or AGPL-3.0", True),
        ("LGPL-3.0-only", False),
        ("GNU Lesser General Public License v3 (LGPLv3)", False),
        ("MPL-2.0", False),
        ("BSD-3-Clause", False),
    ],
)
def test_copyleft_is_known_in_any_spelling(licence: str, copyleft: bool) -> None:
    assert licences.Package("p", "1", licence).copyleft is copyleft


def stated(name: str, *requires: str, **fields: str) -> Message:
    """Return metadata as an installed package has it."""
    made = Message()
    made["Name"], made["Version"] = name, "1"
    for key, value in fields.items():
        made[key.replace("_", "-")] = value
    for requirement in requires:
        made["Requires-Dist"] = requirement
    return made


def test_what_is_needed_through_others_and_their_extras_counts() -> None:
    packages = {
        "a": stated("A", "b[fast]>=1", "x; python_version < '3'", License_Expression="MIT"),
        "b": stated(
            "b", "c; extra == 'fast'", "y; extra == 'slow'", Classifier="License :: OSI Approved :: BSD License"
        ),
        "c": stated("c", "a", License="GNU General Public License v3"),
    }
    found = licences.closure(["A>=1"], packages.__getitem__)
    assert {name: package.licence for name, package in found.items()} == {
        "a": "MIT",
        "b": "BSD License",
        "c": "GNU General Public License v3",
    }
    assert [package.name for package in found.values() if package.copyleft] == ["c"]


def test_a_whole_text_in_place_of_a_name_is_told_by_what_it_says() -> None:
    text = (
        "Copyright (c) 2001 Somebody\n\nRedistribution and use in source and binary forms, with or without\n" + "x" * 80
    )
    assert licences.stated_licence(stated("p", License=text)) == "BSD"
    assert licences.stated_licence(stated("p")) == "not stated"

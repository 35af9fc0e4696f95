"""A course starts fast because it imports only what it uses."""

import json
import subprocess
import sys

import pytest

HEAVY = (
    "torch_geometric",
    "sklearn",
    "pandas",
    "pyarrow",
    "networkx.algorithms",
    "torch._dynamo",
    "optuna",
)


# What is done one after the other in a new process, each with what was loaded by then.
STEPS = {
    "isthmus": "import isthmus",
    "dir": "assert dir(isthmus) == sorted(isthmus.__all__), dir(isthmus)",
    "the command line": "import isthmus.cli",
    "models": "import isthmus.models",
    "a course": "isthmus.run(isthmus.Course(rounds=1))",
    "all of a run and the checks": "import isthmus.runs.life, isthmus.testing",
}


@pytest.fixture(scope="module")
def loaded() -> dict[str, set[str]]:
    lines = [f"{step}\nprint(json.dumps([{name!r}, list(sys.modules)]))" for name, step in STEPS.items()]
    script = "\n".join(["import json, sys", *lines])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return {name: set(modules) for name, modules in map(json.loads, done.stdout.splitlines())}


def test_importing_isthmus_imports_nothing_heavy(loaded: dict[str, set[str]]) -> None:
    assert "torch" not in loaded["isthmus"]


def test_dir_lists_the_public_names_and_imports_none_of_them(loaded: dict[str, set[str]]) -> None:
    assert "torch" not in loaded["dir"]


def test_the_help_of_the_command_line_does_without_torch(loaded: dict[str, set[str]]) -> None:
    assert "torch" not in loaded["the command line"]


def test_importing_the_models_stays_cheap(loaded: dict[str, set[str]]) -> None:
    assert "torch" in loaded["models"]
    assert not loaded["models"] & {"torch_geometric", "torch._dynamo", "scipy", "sklearn", "isthmus.data"}


def test_the_default_course_imports_no_heavy_library_it_does_not_need(loaded: dict[str, set[str]]) -> None:
    assert not loaded["a course"] & set(HEAVY)


def test_running_a_course_from_python_loads_no_torch_geometric(loaded: dict[str, set[str]]) -> None:
    assert "isthmus.testing" in loaded["all of a run and the checks"]
    assert "torch_geometric" not in loaded["all of a run and the checks"]

"""A course starts fast because it imports only what it uses."""

import subprocess
import sys

HEAVY = (
    "torch_geometric",
    "sklearn",
    "pandas",
    "pyarrow",
    "matplotlib",
    "networkx.algorithms",
    "torch._dynamo",
    "optuna",
)


def loaded_by(code: str) -> set[str]:
    script = f"{code}\nimport sys\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines())


def test_the_default_course_imports_no_heavy_library_it_does_not_need(tmp_path: object) -> None:
    found = loaded_by("import isthmus\nisthmus.run(isthmus.Course(rounds=1))")
    assert "torch" in found and not found & set(HEAVY)


def test_importing_isthmus_imports_nothing_heavy() -> None:
    assert "torch" not in loaded_by("import isthmus")


def test_dir_lists_the_public_names_and_imports_none_of_them() -> None:
    found = loaded_by("import isthmus\nassert dir(isthmus) == sorted(isthmus.__all__), dir(isthmus)")
    assert "torch" not in found


def test_the_help_of_the_command_line_does_without_torch() -> None:
    assert "torch" not in loaded_by("import isthmus.cli")

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_the_algorithm_example_runs_and_learns(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "add_an_algorithm.py")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) > 0.8


def test_the_algorithm_example_passes_the_shipped_checks() -> None:
    import importlib.util

    from isthmus.testing import check_algorithm

    spec = importlib.util.spec_from_file_location("add_an_algorithm", EXAMPLES / "add_an_algorithm.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    check_algorithm(module.FedConfident(tau=0.5))

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_the_algorithm_example_runs_and_learns(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "add_an_algorithm.py"), run_name="__main__")
    assert float(capsys.readouterr().out.split()[-1]) > 0.8


def test_the_algorithm_example_passes_the_shipped_checks() -> None:
    import importlib.util

    from isthmus.testing import check_algorithm, toy_course

    spec = importlib.util.spec_from_file_location("add_an_algorithm", EXAMPLES / "add_an_algorithm.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    algorithm = module.FedConfident(tau=0.5)
    check_algorithm(algorithm, toy_course(algorithm, rounds=2))

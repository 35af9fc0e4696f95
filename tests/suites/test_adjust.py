from pathlib import Path

import pytest

from isthmus.algorithms import FedAvg
from isthmus.core.errors import BadInput
from isthmus.suites.spec import load_suite

ADJUSTED = """
seeds: 1
axes:
  size: {small: {rounds: 2}, large: {rounds: 3}}
  method: {FedAvg: {algorithm.name: fedavg}, Local: {algorithm.name: local}}
adjust:
  - {method: FedAvg, size: [small], set: {algorithm.weighting: nodes, rounds: 9}}
"""


def test_adjust_sets_keys_of_some_cells_and_yields_to_their_choices(tmp_path: Path) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text(ADJUSTED)
    courses = {tuple(point.cell.values()): point.course for point in load_suite(path).points()}
    assert courses["small", "FedAvg"].algorithm == FedAvg(weighting="nodes")
    assert courses["large", "FedAvg"].algorithm == FedAvg()
    assert {key: course.rounds for key, course in courses.items() if key[0] == "small"} == {
        ("small", "FedAvg"): 2,
        ("small", "Local"): 2,
    }


@pytest.mark.parametrize(
    ("adjust", "message"),
    [
        ("{method: FedAvg}", "adjust is .*expected a list"),
        ("[{method: FedAvg}]", "entry 1 of adjust is .* needs choices and `set`"),
        ("[{method: FedAvg, set: {}}]", "entry 1 of adjust"),
        ("[{set: {rounds: 2}}]", "entry 1 of adjust is .*expected axes and choices"),
        ("[{methd: FedAvg, set: {rounds: 2}}]", "names the axis 'methd'.*Did you mean 'method'"),
        ("[{method: FedAvgg, set: {rounds: 2}}]", "names method 'FedAvgg'"),
        ("[{method: FedAvg, set: {roundz: 2}}]", "roundz is not a known key"),
    ],
)
def test_adjust_refuses_what_it_cannot_read(adjust: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text(ADJUSTED.split("adjust:")[0] + f"adjust: {adjust}\n")
    with pytest.raises(BadInput, match=message):
        load_suite(path)

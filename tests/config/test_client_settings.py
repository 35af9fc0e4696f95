"""Settings of single clients: who has them trains by them, everybody else as before."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from isthmus import Course, run
from isthmus.algorithms import FedAvg, Local
from isthmus.config.load import check_client_settings, course_to_yaml, load_course, own_algorithm
from isthmus.core.errors import BadInput
from isthmus.learn.optimizers import SGD
from isthmus.privacy import SecureSum
from isthmus.testing.toys import toy_course, toy_scenario


def course(settings: dict[str, Any], runtime: str = "loop") -> Course:
    return toy_course(Local(local_steps=2, optimizer=SGD(lr=0.1)), client_settings=settings, runtime=runtime)


@pytest.mark.parametrize("runtime", ["loop", "strict", "auto"])
def test_only_the_named_client_trains_otherwise(runtime: str) -> None:
    plain = run(course({}, runtime), scenario=toy_scenario(5)).client_params
    own = run(course({"client-3": {"optimizer.lr": 0.3}}, runtime), scenario=toy_scenario(5)).client_params
    all_own = toy_course(Local(local_steps=2, optimizer=SGD(lr=0.3)), runtime=runtime)
    expected = run(all_own, scenario=toy_scenario(5)).client_params
    for client, params in own.items():
        like = (expected if client == "client-3" else plain)[client]
        for name, tensor in params.items():
            assert torch.allclose(tensor, like[name], atol=1e-6), (client, name)
    assert not torch.allclose(plain["client-3"]["gnn.layers.0.weight"], own["client-3"]["gnn.layers.0.weight"])


def test_nested_fields_are_reached_and_the_others_stay() -> None:
    made = own_algorithm(course({"client-0": {"optimizer.lr": 0.5, "local_steps": 7}}), "client-0")
    assert made == Local(local_steps=7, optimizer=SGD(lr=0.5))
    assert own_algorithm(course({"client-0": {"local_steps": 7}}), "client-1") is None


def test_settings_survive_the_file(tmp_path: Any) -> None:
    before = Course(algorithm=FedAvg(), client_settings={"client-1": {"optimizer.lr": 0.5}})
    path = tmp_path / "course.yaml"
    path.write_text(course_to_yaml(before))
    assert load_course(path) == before


def test_settings_that_a_guard_cannot_stand_beside_are_refused() -> None:
    made = Course(
        algorithm=FedAvg(optimizer=SGD(weight_decay=0.0)),
        guards=(SecureSum(min_holders=2),),
        client_settings={"client-1": {"optimizer.weight_decay": 0.01}},
    )
    own = r"client-1: guards: SecureSum: min_holders is 2, and algorithm\.optimizer\.weight_decay is 0\.01"
    with pytest.raises(BadInput, match=own):
        check_client_settings(made, [f"client-{place}" for place in range(5)])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"client-9": {"local_steps": 2}}, "client_settings has 'client-9', which is no client"),
        ({"client-0": {"local_step": 2}}, r"client_settings\.client-0.*local_step is not a known key"),
        ({"client-0": {"local_steps": 0}}, r"local_steps is 0"),
        ({"client-1": {"batching.name": "mini"}}, r"client-1: batching.name is 'mini'; tasks on nodes take 'full' or"),
        ({"client-0": {"name": "fedavg"}}, "makes the algorithm another one, FedAvg"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        run(course(settings), scenario=toy_scenario())

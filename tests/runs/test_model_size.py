"""A model that no machine can hold is refused in a sentence, before any of it is made."""

from __future__ import annotations

import pytest

import isthmus as ist
from isthmus.core.errors import BadInput
from isthmus.models import GCN, MLPDecoder
from isthmus.testing.toys import toy_course, toy_scenario


@pytest.mark.parametrize("hidden", [10**10, 10**18, 10**30], ids=["57 TB", "a shape", "no shape"])
def test_a_model_beyond_this_machine_s_memory_is_refused_with_its_size(hidden: int) -> None:
    course = toy_course(ist.FedAvg(), model=ist.ModelSpec(gnn=GCN(hidden=hidden)))
    with pytest.raises(BadInput, match=r"^model has .* parameters, .* GB; this machine has .*: make it smaller"):
        ist.run(course, scenario=toy_scenario())


def test_so_is_a_client_s_own_and_it_is_named() -> None:
    settings = {"client-1": {"model.gnn.hidden": 10**11}}
    course = toy_course(ist.FedAvg(), client_settings=settings, shared=("gnn.layers.1.bias",))
    with pytest.raises(BadInput, match=r"^client_settings\.client-1: model has"):
        ist.run(course, scenario=toy_scenario())


def test_finding_the_size_draws_no_random_number() -> None:
    course = toy_course(ist.FedAvg(), model=ist.ModelSpec(gnn=GCN(hidden=8), decoder=MLPDecoder(hidden=4)), rounds=1)
    one, two = (ist.run(course, scenario=toy_scenario()).params for _ in range(2))
    assert all(bool((one[name] == two[name]).all()) for name in one)

"""Costs are counted: operations, bytes of tensors, bytes of Python objects; and bounds say what was too much."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from isthmus.testing import Bound, Cost, Meter, require_within
from isthmus.testing.hostile.forging import Claimed, forged


def test_operations_and_the_bytes_of_their_results_are_counted() -> None:
    with Meter() as meter:
        one = torch.zeros(1000)
        one[:10].add_(1.0)  # neither a view nor what is done in place is new memory
        one + 1.0
    assert (meter.cost.operations, meter.cost.tensor_bytes, meter.cost.largest) == (4, 8000, 4000)


def test_what_a_sparse_matrix_consists_of_is_counted() -> None:
    with Meter() as meter:
        torch.sparse_csr_tensor(
            torch.tensor([0, 1, 2]), torch.tensor([0, 1]), torch.ones(2), (2, 2), check_invariants=False
        )
    assert meter.cost.tensor_bytes >= 3 * 8 + 2 * 8 + 2 * 4


def test_tensors_without_memory_count_as_operations_alone() -> None:
    with Meter() as meter:
        torch.zeros(10**12, device="meta")
    assert meter.cost.operations == 1 and meter.cost.tensor_bytes == 0


def test_python_objects_and_numpys_arrays_count_by_the_highest_they_stood() -> None:
    with Meter() as meter:
        bytearray(10**6)
        assert 10**6 <= meter.split().python_bytes < 10**6 + 10**5
        np.zeros(10**6)
        assert 8 * 10**6 <= meter.split().python_bytes < 8 * 10**6 + 10**5


def test_what_is_done_in_a_pause_is_not_counted() -> None:
    with Meter() as meter:
        torch.zeros(10)
        with meter.paused(), meter.paused():
            torch.zeros(10**6)
            bytearray(10**7)
        torch.zeros(10)
        cost = meter.split()
    assert (cost.operations, cost.tensor_bytes) == (2, 80) and cost.python_bytes < 10**5
    assert (meter.cost.operations, meter.cost.tensor_bytes) == (2, 80)


def test_a_meter_that_ended_counts_no_more() -> None:
    with Meter() as meter:
        pass
    torch.zeros(1000)
    assert meter.cost.operations == 0


def test_a_bound_grows_with_the_message_and_names_what_is_above_it() -> None:
    bound = Bound(
        tensor_bytes=100,
        tensors_per_byte=2.0,
        python_bytes=1000,
        python_per_byte=3.0,
        operations=5,
        operations_per_tensor=4.0,
    )
    most = bound.of(10, 2)
    assert most == Cost(operations=13, tensor_bytes=120, largest=120, python_bytes=1030)
    require_within(most, most, "it")
    for cost, part in (
        (Cost(operations=14), "it took 14 operations; the bound is 13"),
        (Cost(tensor_bytes=121), "it took 121 bytes of tensors"),
        (Cost(python_bytes=1031), "it took 1,031 bytes of Python objects"),
    ):
        with pytest.raises(AssertionError, match=part):
            require_within(cost, most, "it")


def test_costs_add_up_but_for_what_is_a_peak() -> None:
    assert Cost(1, 2, 3, 4) + Cost(10, 20, 2, 5) == Cost(11, 22, 3, 5)


def test_what_is_forged_may_claim_any_shape() -> None:
    message = forged({"w": Claimed("f32", (2**50, 0)), "k" * 10**5: 2**80, "n": float("nan")})
    assert message.startswith(b"ISTH") and b"1125899906842624" in message and b'{"n":"nan"}' in message

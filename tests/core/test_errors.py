from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.core.errors import (
    BadInput,
    BadMessage,
    CourseFailed,
    IsthmusError,
    MissingData,
    MissingExtra,
    TooFewReplies,
    nearest,
)

from .toys import quick

NAMES = ("fedsage_plus", "fedavg", "fedgl", "local")


def test_choices_are_sorted_and_the_nearest_is_named() -> None:
    assert nearest("fedagv", NAMES) == "known: fedavg, fedgl, fedsage_plus, local. Did you mean 'fedavg'?"


def test_what_is_no_name_at_all_is_refused_as_a_name_is() -> None:
    assert nearest(8, NAMES) == "known: fedavg, fedgl, fedsage_plus, local."  # type: ignore[arg-type]


def test_a_name_that_starts_with_what_was_typed_is_nearest() -> None:
    assert nearest("fedsage", NAMES).endswith("Did you mean 'fedsage_plus'?")
    assert nearest("l", NAMES).endswith("Did you mean 'local'?")


def test_case_does_not_matter() -> None:
    assert nearest("FedAvg", NAMES).endswith("Did you mean 'fedavg'?")


@pytest.mark.parametrize("name", ["", "zzzzzz", "???"])
def test_nothing_near_is_not_guessed(name: str) -> None:
    assert nearest(name, NAMES) == "known: fedavg, fedgl, fedsage_plus, local."


def test_an_empty_table_is_said_to_be_empty() -> None:
    assert nearest("x", []) == "there are none"


@quick
@given(st.text(), st.lists(st.text(), max_size=5))
def test_any_name_gets_an_answer(name: str, known: list[str]) -> None:
    assert nearest(name, known)


def test_one_root_and_the_exit_codes_that_tell_users_faults_from_ours() -> None:
    assert {kind.exit_code for kind in (BadInput, MissingData, MissingExtra)} == {2}
    assert {kind.exit_code for kind in (IsthmusError, BadMessage, TooFewReplies, CourseFailed)} == {1}
    assert all(issubclass(kind, IsthmusError) for kind in (BadInput, BadMessage, TooFewReplies, CourseFailed))


def test_a_missing_extra_says_how_to_get_it() -> None:
    text = str(MissingExtra("tensorboard", "sinks", "the TensorBoard sink"))
    assert text == "the TensorBoard sink needs the package 'tensorboard'; install it with: pip install 'isthmus[sinks]'"

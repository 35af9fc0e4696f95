from itertools import combinations, product

import pytest

from tests.meeting import covering

pytest_plugins = ["pytester"]

TESTS = """
import pytest

@pytest.mark.meet(NUMBER)
@pytest.mark.parametrize("one", [1, 2])
@pytest.mark.parametrize("two", "abc")
@pytest.mark.parametrize("three", [True, False])
def test_something(one, two, three):
    pass

def test_another():
    pass
"""
CONFTEST = """
import pytest
from tests.meeting import mark_the_others_slow

@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    mark_the_others_slow(items)
"""
# Without hypothesis, which every such session would import anew.
OPTIONS = ["-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-W", "ignore"]


@pytest.mark.parametrize("sizes", [(3, 2, 2, 2), (5, 3), (4, 4, 4), (2, 2, 2, 2, 2), (1, 6)])
@pytest.mark.parametrize("number", [1, 2])
def test_all_values_meet_and_few_choices_do_it(sizes: tuple[int, ...], number: int) -> None:
    every = list(product(*map(range, sizes)))
    cover = covering(every, number)
    for places in combinations(range(len(sizes)), number):
        met = {tuple(choice[place] for place in places) for choice in cover}
        assert met == set(product(*(range(sizes[place]) for place in places)))
    least = 1
    for size in sorted(sizes)[-number:]:
        least *= size
    assert least <= len(cover) <= least + 3 and cover <= set(every)


def test_no_value_is_met_in_what_is_slow_already_alone(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    some_slow = "[pytest.param(1, marks=pytest.mark.slow), 2]"
    pytester.makepyfile(TESTS.replace("NUMBER", "1").replace('"one", [1, 2]', f'"one", {some_slow}'))
    pytester.inline_run(*OPTIONS, "-m", "not slow").assertoutcome(passed=3 + 1)
    pytester.inline_run(*OPTIONS, "-m", "slow").assertoutcome(passed=12 - 3)


@pytest.mark.parametrize(("number", "wanted"), [(1, 3), (2, 6), (3, 12)])
def test_the_others_are_slow_and_nothing_is_left_out(pytester: pytest.Pytester, number: int, wanted: int) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(TESTS.replace("NUMBER", str(number)))
    pytester.inline_run(*OPTIONS, "-m", "not slow").assertoutcome(passed=wanted + 1)
    pytester.inline_run(*OPTIONS, "-m", "slow").assertoutcome(passed=12 - wanted)

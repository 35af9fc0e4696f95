"""Tests run in several processes, so each keeps to one thread; so do the processes that tests start."""

import os
import signal
from collections.abc import Iterator

os.environ.setdefault("OMP_NUM_THREADS", "1")
# A shell's background job ignores Ctrl-C, and so would every process that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

import torch

torch.set_num_threads(1)

import pytest

from isthmus.runtime.cluster import Crew, crew_of
from tests.meeting import mark_the_others_slow
from tests.processes import copy_workers


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark combinations that the default set does without, before it is chosen."""
    mark_the_others_slow(items)


@pytest.fixture(autouse=True)
def same_weights_in_every_run() -> None:
    """Begin torch's global generator anew, which modules that a test builds by itself draw their weights from."""
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    """Two processes for all tests of a file, copies of one that has imported everything."""
    with pytest.MonkeyPatch.context() as patch:
        copy_workers(patch)
        with crew_of(2, None) as found:
            yield found

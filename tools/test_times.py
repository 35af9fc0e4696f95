"""Tells what tests cost in processor time, that of the processes they start included.

    python -m pytest -p tools.test_times tests/learn              by file, and the dearest tests
    python -m pytest -p tools.test_times --dearest 100 tests/learn

Time by the clock says more of what else a machine does. What a fixture of several tests costs is counted to the first
of them; a process that is never waited for is not counted, nor is the one that copies are made of
(tests/processes.py). With xdist the times of all workers are added.
"""

from __future__ import annotations

import resource
import sys
from collections import defaultdict
from collections.abc import Generator
from typing import Any

import pytest

KEY = "processor_seconds"
DEAREST = "dearest"


def spent() -> float:
    """Return the processor seconds of this process, of those it waited for and of copies that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    copies = sys.modules.get("tests.processes")
    return sum(usage.ru_utime + usage.ru_stime for usage in usages) + (copies.spent[0] if copies else 0.0)


class Times:
    """Adds up what the phases of tests cost."""

    def __init__(self) -> None:
        """Start at nothing."""
        self.began = self.last = spent()
        self.tests: dict[str, float] = {}

    def pytest_runtest_logstart(self) -> None:
        """Forget what was done between two tests."""
        self.last = spent()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, Any, Any]:
        """Write into the report of a phase what it cost; a worker's reports are sent with it."""
        report = yield
        now = spent()
        report.user_properties.append((KEY, now - self.last))
        self.last = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a phase to its test."""
        for key, value in report.user_properties:
            if key == KEY and isinstance(value, float):
                self.tests[report.nodeid] = self.tests.get(report.nodeid, 0.0) + value

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        """Print the table of files and the dearest tests."""
        files: dict[str, list[float]] = defaultdict(list)
        for test, seconds in self.tests.items():
            files[test.partition("::")[0]].append(seconds)
        tell = terminalreporter.write_line
        terminalreporter.section("processor seconds")
        for file, costs in sorted(files.items(), key=lambda item: -sum(item[1])):
            tell(f"{sum(costs):9.2f}  {len(costs):5d} tests  {file}")
        whole = sum(self.tests.values())
        tell(f"{whole:9.2f}  {len(self.tests):5d} tests in all; with imports and the rest {spent() - self.began:.2f}")
        dearest = sorted(self.tests.items(), key=lambda item: -item[1])
        for test, seconds in dearest[: config.getoption(DEAREST)]:
            tell(f"{seconds:9.2f}  {test}")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the number of tests that are named be chosen."""
    parser.addoption("--dearest", dest=DEAREST, type=int, default=20, help="tests whose processor seconds are told")


def pytest_configure(config: pytest.Config) -> None:
    """Count for this session."""
    config.pluginmanager.register(Times())

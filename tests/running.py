"""Names the tests that were running when a run was interrupted, e.g. because it took too long."""

import pytest


class Running:
    """The tests that have begun and not ended, also those of the workers of pytest-xdist."""

    def __init__(self) -> None:
        self.tests: dict[str, None] = {}  # ordered
        self.interrupted = False

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.tests[nodeid] = None

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.tests.pop(nodeid, None)

    def pytest_keyboard_interrupt(self) -> None:
        self.interrupted = True

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.interrupted:
            terminalreporter.section('INTERRUPTED while these tests ran')
            for nodeid in self.tests:
                terminalreporter.write_line(f'    {nodeid}')


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Running())

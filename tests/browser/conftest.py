"""The fixtures `chromium`, a browser, `page` in it, and `lab`, a JupyterLab in it.

A page of JupyterLab costs four seconds of CPU, and a kernel's fork server as many. So all tests
share three: `notebook`, `restarted`, whose kernel tests restart, and `viewer`, which has none.

They end with this package: Playwright's synchronous interface leaves an event loop running in the
main thread, where the Jupyter clients of other tests need their own.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect, sync_playwright

from tests.browser.lab import NAMES, Lab, LabNotebook, browser

MISSING = "no browser on PATH; looked for " + ", ".join(NAMES)
LAB = pytest.StashKey[Lab]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker("browser")


def pytest_exception_interact(node: pytest.Item) -> None:
    """Let no test wait for what one that failed has left: they share kernels."""
    if LAB in node.config.stash:
        node.config.stash[LAB].interrupt()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    count = sum(MISSING in str(report.longrepr) for report in skipped)
    if count:
        terminalreporter.write_line(f"{count} browser tests skipped: {MISSING}", yellow=True)


@pytest.fixture(scope="package")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrowserContext]:
    if not any(map(shutil.which, NAMES)):
        (pytest.fail if os.environ.get("CI") else pytest.skip)(MISSING)
    expect.set_options(timeout=60_000)  # a busy machine is not a failure
    with sync_playwright() as playwright:
        started = browser(playwright, tmp_path_factory.mktemp("chromium"))
        yield started
        started.close()


@pytest.fixture(scope="package")
def page(chromium: BrowserContext) -> Page:
    """The page of each test's first panel, without a JupyterLab."""
    return chromium.new_page()


@pytest.fixture(scope="package")
def lab(
    chromium: BrowserContext, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[Lab]:
    started = Lab(chromium, tmp_path_factory.mktemp("lab"))
    pytestconfig.stash[LAB] = started
    yield started
    del pytestconfig.stash[LAB]
    started.close()


@pytest.fixture(scope="package")
def notebook(lab: Lab) -> Iterator[LabNotebook]:
    """A notebook for all tests, its fork server warm; each test adds cells."""
    with lab.open(["%load_ext xla_nb", "%%xla_spawn -n 1\ndef warm(rank): pass"]) as opened:
        for cell in (0, 1):
            opened.run(cell)
            opened.done(cell)
        yield opened


@pytest.fixture(scope="package")
def own_kernel(lab: Lab) -> Iterator[LabNotebook]:
    with lab.open([]) as opened:
        yield opened


@pytest.fixture
def restarted(own_kernel: LabNotebook) -> LabNotebook:
    """A notebook without cells, whose kernel has the extension, and which a test may restart: it
    leaves the processes of that kernel, and files of one that is killed, as it ends too late."""
    own_kernel.execute("%load_ext xla_nb")
    own_kernel.execute("%xla_shutdown")
    own_kernel.clear()
    return own_kernel


@pytest.fixture(scope="package")
def viewer(lab: Lab) -> Iterator[LabNotebook]:
    """A page that shows notebooks without a kernel, one after the other."""
    with lab.open(lab.write([]), kernel=False) as opened:
        yield opened

"""The fixtures `chromium` (a browser), `page` (a page in it) and `lab` (a JupyterLab).

A JupyterLab page costs four seconds of CPU, and so does a kernel's fork server. So all tests share
three notebooks: `notebook`, `restarted` (tests restart its kernel) and `viewer` (no kernel).

They end with this package, because Playwright's synchronous API leaves an event loop running in
the main thread, where the Jupyter clients of other tests need their own.
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
    """Interrupt what a failed test left running, because tests share kernels."""
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
    """The page for the first panel of each test, without JupyterLab."""
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
    """A notebook for all tests, with a warm fork server. Each test adds cells."""
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
    """An empty notebook with the extension loaded. Tests may restart its kernel, which leaves
    its processes, and the files of a killed kernel, behind."""
    own_kernel.execute("%load_ext xla_nb")
    own_kernel.execute("%xla_shutdown")
    own_kernel.clear()
    return own_kernel


@pytest.fixture(scope="package")
def viewer(lab: Lab) -> Iterator[LabNotebook]:
    """A page that shows one notebook after another, without a kernel."""
    with lab.open(lab.write([]), kernel=False) as opened:
        yield opened

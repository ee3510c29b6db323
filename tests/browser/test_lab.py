"""A launched cell in JupyterLab and Notebook 7, and lab.py, which drives them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.browser.conftest import MISSING
from tests.browser.lab import DARK, LIGHT, Lab, LabNotebook

HELLO = "%%xla_spawn -n 2 --view text\nprint(f'rank {rank} of {world_size}')"
ENDLESS = """\
%%xla_spawn -n 2 --view text
import time
print("begun", rank)
for _ in range(3000):
    time.sleep(0.1)
"""


def test_ranks_print_in_the_cell(notebook: LabNotebook) -> None:
    shown = notebook.text(notebook.execute(HELLO))
    assert "[0] rank 0 of 2" in shown
    assert "[1] rank 1 of 2" in shown
    assert "2 ranks finished" in shown


def test_interrupt_ends_the_run(notebook: LabNotebook) -> None:
    cell = notebook.add(ENDLESS)
    notebook.run(cell)
    for rank in (0, 1):
        notebook.wait_for(f"[{rank}] begun {rank}", cell)
    notebook.interrupt()
    notebook.done(cell)
    assert "Stopped by an interrupt" in notebook.text(cell)
    assert "2 ranks finished" in notebook.text(notebook.execute(HELLO))


def test_cell_can_run_repeatedly(notebook: LabNotebook) -> None:
    cell = notebook.add(HELLO)
    prompts = []
    for _ in range(5):
        notebook.run(cell)
        notebook.done(cell)
        notebook.wait_for("2 ranks finished", cell)
        prompts.append(int(re.sub(r"\D", "", notebook.prompt(cell).inner_text())))
    assert prompts == list(range(prompts[0], prompts[0] + 5))


@pytest.mark.slow
def test_theme_applies_to_one_page(notebook: LabNotebook, lab: Lab) -> None:
    notebook.theme(DARK)
    with lab.open(["1"], kernel=False) as another:
        assert another.page.locator("body").get_attribute("data-jp-theme-name") == LIGHT
    notebook.theme(LIGHT)


@pytest.mark.slow
def test_restarted_kernel_has_no_variables(lab: Lab) -> None:
    with lab.open(["x = 1"]) as notebook:
        notebook.run(0)
        notebook.done(0)
        notebook.restart()
        assert "NameError" in notebook.text(notebook.execute("x"))


@pytest.mark.slow
def test_shutdown_ends_the_kernel_and_its_processes(lab: Lab) -> None:
    source = "import os, subprocess\nprint(subprocess.Popen(['sleep', '600']).pid, os.getpid())"
    notebook = lab.open([source])
    notebook.run(0)
    notebook.done(0)
    pids = [int(pid) for pid in notebook.text(0).split()]
    assert all(map(psutil.pid_exists, pids))
    notebook.shutdown()
    assert not any(map(psutil.pid_exists, pids))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ci", "outcome", "line"),
    [("", "1 skipped", f"1 browser tests skipped: {MISSING}"), ("true", "1 error", MISSING)],
    ids=["local", "ci"],
)
def test_missing_browser_skips_locally_and_fails_in_ci(
    ci: str, outcome: str, line: str, tmp_path: Path
) -> None:
    test = f"{Path(__file__)}::test_restarted_kernel_has_no_variables"
    done = subprocess.run(
        [
            *[sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
            *["--basetemp", tmp_path / "base", test],
        ],
        env={**os.environ, "PATH": "", "CI": ci},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert outcome in done.stdout, done.stdout + done.stderr
    assert line in done.stdout
    assert done.returncode == (1 if ci else 0)

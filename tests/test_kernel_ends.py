"""A kernel restarted while ranks run: how the list of runs describes their run afterwards."""

import pytest

from tests.support.kernel import COLD, Notebook

# The cell cleans up for a moment: a restart interrupts the kernel first, and a run that ends before
# the kernel receives the rest of the request looks as if it was stopped by an interrupt.
CELL = """%%xla_spawn -n 1 --view text {}
import time
try:
    print('up', flush=True)
    time.sleep(600)
finally:
    time.sleep(0.5)
"""


@pytest.fixture
def kernel(tmp_path):
    notebook = Notebook(XLA_NB_HOME=str(tmp_path / "home"))
    notebook.ok("%load_ext xla_nb")
    yield notebook
    notebook.close()


def told_after_a_restart(kernel):
    kernel.manager.restart_kernel(now=False)
    kernel.client.wait_for_ready(timeout=120)
    kernel.ok(COLD)
    return kernel.ok("%xla_runs 1").text.splitlines()[1]


def test_a_running_cell_is_listed_as_stopped_by_the_kernels_restart(kernel):
    class Up(Exception):
        pass

    def wait(shown):
        if "[0] up" in shown.lines:
            raise Up

    with pytest.raises(Up):
        kernel.run(CELL.format(""), during=wait)
    told = told_after_a_restart(kernel)
    assert told.endswith("Stopped because the kernel was shut down or restarted")
    assert " stopped " in told


@pytest.mark.slow
def test_a_background_run_is_listed_as_stopped_by_the_kernels_restart(kernel):
    kernel.ok(CELL.format("--bg -o behind"))
    kernel.ok("while not behind.output(0): __import__('time').sleep(0.02)")
    told = told_after_a_restart(kernel)
    assert told.endswith("Stopped because the kernel was shut down or restarted")
    assert " stopped " in told

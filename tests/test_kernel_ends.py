"""A kernel that is restarted while ranks run: what is said of their run afterwards."""

import pytest

from tests.support.kernel import COLD, Notebook

# It cleans up for a moment: who restarts a kernel interrupts it first, and a run that has ended
# before the kernel hears of the rest was stopped by an interrupt, as far as anybody knows.
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


def test_a_run_in_its_cell_was_stopped_by_the_kernels_restart_and_by_no_interrupt(kernel):
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
def test_a_run_in_the_background_was_stopped_by_the_kernels_restart(kernel):
    kernel.ok(CELL.format("--bg -o behind"))
    kernel.ok("while not behind.output(0): __import__('time').sleep(0.02)")
    told = told_after_a_restart(kernel)
    assert told.endswith("Stopped because the kernel was shut down or restarted")
    assert " stopped " in told

"""A disk that really fills up during a run: no failed write may end a rank or the notebook.

File size limits (RLIMIT_FSIZE) behave like a full disk and need none.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kernel import Notebook


def test_ranks_continue_when_output_does_not_fit_and_report_it_once(notebook):
    shown = notebook.ok(
        "%%xla_spawn -n 3 -o full --view text\n"
        "import os, resource, sys, time, xla_nb\n"
        "def f(rank):\n"
        "    if rank:\n"
        "        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))\n"
        "    for step in range(2000):\n"
        "        print(f'step {step:10}')\n"
        "        print(f'step {step:10}', file=sys.stderr)\n"
        "        xla_nb.report(loss=step)\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        print('a worker')\n"
        "        sys.stdout.flush()\n"
        "        os._exit(0)\n"
        "    return os.waitpid(child, 0)[1] + rank"
    )
    assert notebook.value("full.results") == "{0: 0, 1: 1, 2: 2}"
    assert notebook.value("full.output(1) == full.output(0)[:20_000]") == "True"
    assert notebook.value("full.output(2, 'err') == full.output(0, 'err')[:20_000]") == "True"
    figures = "(lambda h: h['loss'][1] == h['loss'][0][:len(h['loss'][1])])(full.history)"
    assert notebook.value(f"{figures}, len(full.history['loss'][0])") == "(True, 2000)"
    for rank in (1, 2):
        told = [line for line in shown.stderr.splitlines() if line.startswith(f"[{rank}] Cannot")]
        assert sorted(line.split(":")[0] for line in told) == [
            f"[{rank}] Cannot write all of its figures",
            f"[{rank}] Cannot write all of its output",
        ]
        assert "ulimit -f" in told[0]
    assert "[0] Cannot" not in shown.stderr


@pytest.fixture(scope="module")
def own_kernel() -> Iterator[Notebook]:
    """A kernel whose file sizes will be limited."""
    notebook = Notebook()
    notebook.ok("import resource, xla_nb\n%load_ext xla_nb")
    notebook.ok(
        "def limit(size):\n"
        "    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))"
    )
    # A process that stays, as in the kernel of the test session.
    notebook.ok("from multiprocessing import resource_tracker; resource_tracker.ensure_running()")
    notebook.ok("%%xla_spawn -n 1\ndef warm(rank): pass", timeout=300)
    yield notebook
    notebook.close()


@pytest.fixture
def limited(own_kernel: Notebook) -> Iterator[Notebook]:
    yield own_kernel
    own_kernel.ok("limit(resource.RLIM_INFINITY)")


WAITS = (
    "import os, sys, time\n"
    "def f(rank, go):\n"
    "    print('waiting', flush=True)\n"
    "    while not os.path.exists(go):\n"
    "        time.sleep(0.01)\n"
    "    return rank"
)


@pytest.mark.slow
def test_notebook_that_cannot_write_follows_its_runs_to_the_end(limited, tmp_path):
    go = tmp_path / "go"
    limited.ok(f'%%xla_spawn -n 2 --bg -o run --args "({str(go)!r},)"\n{WAITS}')
    limited.ok("import time\nwhile not all(map(run.output, (0, 1))): time.sleep(0.01)")
    limited.ok("limit(1)")
    stacks = limited.ok("%xla_stacks run")
    assert "time.sleep" in stacks.stdout
    go.touch()
    limited.ok("run.wait(120)")
    assert limited.value("run.results") == "{0: 0, 1: 1}"
    texts = limited.value("' '.join(n.text for n in run.state.notices)")
    assert texts.count("Cannot write all of the saved record") == 1
    listed = limited.ok("%xla_runs").text
    assert "running" not in listed
    assert "2 ranks finished" in listed


@pytest.mark.slow
def test_events_that_did_not_fit_are_recorded_once_there_is_space(limited, tmp_path):
    go = tmp_path / "go"
    limited.ok(f'%%xla_spawn -n 2 --bg -o run --args "({str(go)!r},)"\n{WAITS}')
    limited.ok("limit(1)")
    limited.ok("while len([r for r in run.state.ranks.values() if r.pid]) < 2: "
               "__import__('time').sleep(0.01)")  # fmt: skip
    limited.ok("limit(resource.RLIM_INFINITY)")
    go.touch()
    limited.ok("run.wait(120)")
    limited.ok("again = xla_nb.open_run(run.name)")
    devices = "[r.device for r in again.state.ranks.values()]"
    assert limited.value(f"again.ok, {devices}, again.results") == (
        "(True, ['xla:0', 'xla:0'], {0: 0, 1: 1})"
    )


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 512 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
def test_ranks_that_fill_the_disk_finish_and_report_lost_output(tiny_disk):
    notebook = Notebook(XLA_NB_HOME=str(tiny_disk))
    try:
        notebook.ok("import xla_nb\n%load_ext xla_nb")
        shown = notebook.run(
            "%%xla_spawn -n 2 -o run --view text\n"
            "import xla_nb\n"
            "def f(rank, lock):\n"
            "    for step in range(20_000):\n"
            "        print(f'{rank} at step {step:40}')\n"
            "    xla_nb.report(loss=1)\n"
            "    return None"
        )
        # A result needs the disk too; without space, its rank fails with ResultError.
        assert notebook.value("{e.kind for e in run.errors.values()} <= {'ResultError'}") == "True"
        assert "Cannot write all of its output" in shown.stderr
        assert notebook.value("run.done") == "True"
        assert "running" not in notebook.ok("%xla_runs").text
    finally:
        notebook.close()

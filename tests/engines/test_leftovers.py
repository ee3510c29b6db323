"""Killed processes leave nothing in TMPDIR and /dev/shm that xla_nb, torch or multiprocessing
made."""

import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from tests.support.kernel import COLD, Notebook

#: Each rank makes what multiprocessing keeps in its own folders.
USES_FOLDERS = (
    "import multiprocessing, os, pathlib, signal, tempfile, time\n"
    "def f(rank):\n"
    "    manager = multiprocessing.Manager()\n"
    "    shared = manager.dict(rank=rank)\n"
    "    queue = multiprocessing.get_context('spawn').Queue()\n"
    "    with multiprocessing.Pool(2) as pool:\n"
    "        assert pool.map(abs, [-1]) == [1]\n"
    "    print(tempfile.gettempdir(), flush=True)\n"
)
#: Each rank makes a semaphore and a segment, which its resource tracker has to unlink.
USES_MEMORY = (
    "import multiprocessing, os, signal, time\n"
    "from multiprocessing import shared_memory\n"
    "def f(rank):\n"
    "    lock = multiprocessing.get_context('spawn').Lock()\n"
    "    memory = shared_memory.SharedMemory(create=True, size=1000)\n"
    "    print(f'sem.{lock._semlock.name[1:]} {memory.name}', flush=True)\n"
)
#: The notebook makes semaphores with "fork" and uses them in a forked process.
MAKES_PRIMITIVES = (
    "import gc, multiprocessing as mp\nfrom multiprocessing.synchronize import SemLock\n"
    "queue, event, value, gate = mp.Queue(), mp.Event(), mp.Value('i'), mp.Barrier(2)\n"
    "process = mp.Process(target=queue.put, args=(1,))\n"
    "process.start(); queue.get(); process.join()\n"
    "print(*(one._semlock.name for one in gc.get_objects() if isinstance(one, SemLock)))"
)
READY = (
    "while not all(len({run}.output(r).splitlines()) for r in (0, 1)): "
    "__import__('time').sleep(0.02)"
)


def warm(**env):
    notebook = Notebook(**env)
    notebook.ok("%load_ext xla_nb")
    notebook.ok("%%xla_spawn -n 1\ndef warm(rank): pass", timeout=300)
    return notebook


@pytest.fixture(scope="module")
def notebook():
    """A kernel whose jobs and ranks the tests kill, with its own TMPDIR."""
    with tempfile.TemporaryDirectory(prefix="xla-nb-") as folder:
        notebook = warm(TMPDIR=folder)
        notebook.ok("import tempfile")
        yield notebook
        notebook.close()


@pytest.fixture
def before():
    """The contents of TMPDIR before the test."""
    return left()


@pytest.fixture
def doomed(before):
    """A kernel for tests that kill it or its fork server."""
    notebook = warm()
    yield notebook
    if notebook.manager.is_alive():
        notebook.close()


def left_by(notebook):
    """All files in the kernel's TMPDIR."""
    return left(notebook.value("tempfile.gettempdir()").strip("'"))


def left(folder=None):
    """All files in TMPDIR except the kernel's connection file and torch's folder."""
    top = Path(folder or tempfile.gettempdir())
    return {
        str(path.relative_to(top))
        for path in top.rglob("*")
        if not path.relative_to(top).parts[0].startswith("xla-nb-")
    }


def server_pid(notebook):
    notebook.ok("from xla_nb import api; from xla_nb.runtimes import xla as xla_runtime")
    return int(notebook.value("api.engine()._servers[xla_runtime.IMPORTS].child.process.pid"))


@pytest.mark.slow
def test_killed_ranks_leave_no_folders(notebook):
    before = left_by(notebook)
    shown = notebook.run(
        "%%xla_spawn -n 2 --grace 1\n" + USES_FOLDERS + "    os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert "SIGKILL" in shown.error
    assert left_by(notebook) == before


@pytest.mark.slow
def test_killed_job_leaves_no_folders(notebook):
    before = left_by(notebook)
    notebook.ok("%%xla_spawn -n 2 --bg -o run\n" + USES_FOLDERS + "    time.sleep(600)")
    notebook.ok(READY.format(run="run"))
    (job,) = [
        process
        for process in psutil.Process(server_pid(notebook)).children()
        if process.name() == "xla_nb-job"
    ]
    job.kill()
    notebook.run("run.wait(60)")
    assert notebook.value("run.done") == "True"
    assert left_by(notebook) == before


@pytest.mark.slow
def test_kernel_killed_before_its_first_launch_leaves_no_folders(before):
    notebook = Notebook()
    notebook.ok("%load_ext xla_nb")
    notebook.ok("from xla_nb import api; from xla_nb.runtimes import xla as xla_runtime")
    notebook.ok("while not api.engine()._servers[xla_runtime.IMPORTS].child.has_news: pass")
    server = psutil.Process(server_pid(notebook))
    os.kill(notebook.pid, signal.SIGKILL)  # before it has read that the server is ready
    notebook.kill()
    assert psutil.wait_procs([server], timeout=60)[1] == []
    assert left() == before


def test_temporary_files_of_ranks_are_in_the_users_tmpdir(notebook, tmp_path):
    notebook.ok(
        f"%%xla_spawn -n 2 --env TMPDIR={tmp_path} -o own\n" + USES_FOLDERS + "    return tempfile"
        ".gettempdir(), os.environ['TMPDIR']"
    )
    assert notebook.value(f"own[1] == ({str(tmp_path)!r},) * 2") == "True"


@pytest.mark.parametrize(
    "which",
    [
        pytest.param("server", marks=pytest.mark.slow),
        pytest.param("kernel", marks=pytest.mark.slow),
        "all",
    ],
)
def test_processes_killed_during_a_run_leave_no_files(doomed, before, which):
    """`server`: only the notebook is left to end the processes it started."""
    doomed.ok("%%xla_spawn -n 2 --bg -o run\n" + USES_FOLDERS + "    time.sleep(600)")
    doomed.ok(READY.format(run="run"))
    server = psutil.Process(server_pid(doomed))
    everything = [server, *server.children(recursive=True)]
    for process in {"server": [server], "kernel": [], "all": everything}[which]:
        process.kill()
    if which != "server":
        os.kill(doomed.pid, signal.SIGKILL)
        doomed.kill()
    assert psutil.wait_procs(everything, timeout=60)[1] == []
    if which == "server":
        doomed.close()
    if which == "all":  # no process is left to remove the fork server's folder
        for own in Path(tempfile.gettempdir()).glob("xla_nb-*"):
            shutil.rmtree(own)
    assert left() == before


IGNORES = (
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "    while True:\n"
    "        try: time.sleep(600)\n"
    "        except KeyboardInterrupt: pass"
)


def still_in_memory(notebook, run):
    """Semaphores and segments printed by two ranks that still exist."""
    words = notebook.value(f"' '.join({run}.output(r) for r in (0, 1))").strip("'")
    names = words.replace("\\n", " ").split()
    assert len(names) == 4
    return [name for name in names if Path("/dev/shm", name).exists()]


@pytest.mark.parametrize(
    ("options", "end"),
    [
        ("--grace 1", "os.kill(os.getpid(), signal.SIGKILL)"),
        ("", "return rank"),
        ("--timeout 1 --grace 0", IGNORES),
    ],
    ids=["killed", "returned", "timed out"],
)
def test_shared_memory_and_semaphores_of_ranks_are_unlinked_at_the_end(notebook, options, end):
    notebook.run(f"%%xla_spawn -n 2 --bg {options} -o kept\n{USES_MEMORY}    {end}")
    notebook.run("kept.wait(60)")
    assert notebook.value("kept.done") == "True"
    assert still_in_memory(notebook, "kept") == []


@pytest.mark.slow
def test_shared_memory_is_unlinked_after_the_fork_server_was_killed(doomed):
    doomed.ok(f"%%xla_spawn -n 2 --bg -o lost\n{USES_MEMORY}    time.sleep(600)")
    doomed.ok(READY.format(run="lost"))
    os.kill(server_pid(doomed), signal.SIGKILL)
    doomed.run("lost.wait(60)")
    assert still_in_memory(doomed, "lost") == []


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(lambda notebook: None, id="shut down", marks=pytest.mark.slow),
        pytest.param(
            lambda notebook: notebook.manager.restart_kernel(now=False),
            id="restarted",
        ),
        pytest.param(
            lambda notebook: os.kill(notebook.pid, signal.SIGKILL),
            id="killed",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            lambda notebook: os.killpg(notebook.pid, signal.SIGKILL),
            id="killed with its group",
        ),
    ],
)
def test_semaphores_of_a_notebook_are_unlinked_when_its_kernel_ends(end):
    notebook = Notebook()
    notebook.ok(COLD)
    made = notebook.ok(MAKES_PRIMITIVES).stdout.split()
    files = [Path("/dev/shm", f"sem.{name[1:]}") for name in made]
    assert len(files) > 10
    assert all(file.exists() for file in files)
    end(notebook)
    notebook.close()
    deadline = time.monotonic() + 30
    while any(file.exists() for file in files):
        assert time.monotonic() < deadline
        time.sleep(0.02)

"""What killed processes leave in TMPDIR and /dev/shm: nothing that xla_nb, torch or multiprocessing
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

#: Each rank has made what multiprocessing keeps in folders of its own.
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
#: Each rank has made a semaphore and a segment, which its resource tracker has to unlink.
USES_MEMORY = (
    "import multiprocessing, os, signal, time\n"
    "from multiprocessing import shared_memory\n"
    "def f(rank):\n"
    "    lock = multiprocessing.get_context('spawn').Lock()\n"
    "    memory = shared_memory.SharedMemory(create=True, size=1000)\n"
    "    print(f'sem.{lock._semlock.name[1:]} {memory.name}', flush=True)\n"
)
#: A notebook has made semaphores of "fork", which a process has used that it has forked.
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
    """A kernel whose jobs and ranks the tests kill, and whose TMPDIR nobody else uses."""
    with tempfile.TemporaryDirectory(prefix="xla-nb-") as folder:
        notebook = warm(TMPDIR=folder)
        notebook.ok("import tempfile")
        yield notebook
        notebook.close()


@pytest.fixture
def before():
    """What is in TMPDIR before the test."""
    return left()


@pytest.fixture
def doomed(before):
    """A kernel that the tests kill, or its fork server."""
    notebook = warm()
    yield notebook
    if notebook.manager.is_alive():
        notebook.close()


def left_by(notebook):
    """All that is in the kernel's TMPDIR."""
    return left(notebook.value("tempfile.gettempdir()").strip("'"))


def left(folder=None):
    """All that is in TMPDIR, but for the kernel's connection and torch's own folder."""
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
def test_ranks_that_are_killed_leave_no_folders(notebook):
    before = left_by(notebook)
    shown = notebook.run(
        "%%xla_spawn -n 2 --grace 1\n" + USES_FOLDERS + "    os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert "SIGKILL" in shown.error
    assert left_by(notebook) == before


@pytest.mark.slow
def test_a_job_that_is_killed_leaves_no_folders(notebook):
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
def test_a_kernel_that_is_killed_before_its_first_launch_leaves_no_folders(before):
    notebook = Notebook()
    notebook.ok("%load_ext xla_nb")
    notebook.ok("from xla_nb import api; from xla_nb.runtimes import xla as xla_runtime")
    notebook.ok("while not api.engine()._servers[xla_runtime.IMPORTS].child.has_news: pass")
    server = psutil.Process(server_pid(notebook))
    os.kill(notebook.pid, signal.SIGKILL)  # it has not read that the server is ready
    notebook.kill()
    assert psutil.wait_procs([server], timeout=60)[1] == []
    assert left() == before


def test_files_that_ranks_make_are_in_the_users_own_folder(notebook, tmp_path):
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
def test_processes_that_are_killed_during_a_run_leave_nothing(doomed, before, which):
    """`server`: nobody but the notebook is there to end what it has started."""
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
    if which == "all":  # nobody is left to remove the fork server's own
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
    """Which of the semaphores and segments that two ranks have printed are still there."""
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
def test_shared_memory_of_the_ranks_of_a_killed_fork_server_is_unlinked(doomed):
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

"""Rules for every test: it leaves nothing behind and writes only to its own folders.

After each test no process, thread, open file or file in TMPDIR may remain that did not exist
before it; they get some time to end. Things that fixtures of a wider scope start exist before the
test, so they do not count. A test that has to leave something is marked with one of the names in
WATCHED below and a comment that gives the reason: `@pytest.mark.leaves("threads")`.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pytest
import zmq.sugar.context
from jupyter_core.utils import ensure_event_loop

from tests.support.fresh import fork_server
from tests.support.kernel import Notebook
from tests.support.warm import Warm
from tests.support.worlds.worlds import Worlds
from xla_nb.errors import LaunchError
from xla_nb.runtimes import torchax

PATIENCE = 60.0  # seconds to wait for processes, threads and files that are about to go
# With this, compiling for a CPU takes a third of the time; results are the same to rounding.
QUICK_TO_COMPILE = ("XLA_FLAGS", "--xla_backend_optimization_level=0")
CHROMIUM_HELPER = re.compile(r"\S*/chrom\S* --type=")  # a browser itself has no type
MARK = ("XLA_NB_TEST", uuid.uuid4().hex)  # inherited by all started processes, even orphans
# Folders and files whose tests share something slow to start go to one worker of pytest-xdist.
TOGETHER = (
    ("browser",),
    ("simulation",),
    ("spmd",),
    ("topology",),
    ("torchax", "runtimes"),  # `worlds`
    (  # `warm_kernels`
        "programs",
        "dropin",
        "contract/test_accelerator.py",
        "contract/test_advice.py",
        "contract/test_launchers.py",
        "test_old_names.py",
    ),
)
# The slowest files and folders. They run first, or one worker would end long after another.
FIRST = (
    "browser",
    "engines/ray/test_cluster.py",
    "engines/ray/test_two_hosts.py",
    "simulation",
    "programs",
    "test_notebooks.py",
    "spmd",
)


def pytest_configure(config: pytest.Config) -> None:
    os.environ.update([MARK])
    os.environ.setdefault(*QUICK_TO_COMPILE)
    # Both remain once created. Created here, they do not count as leftovers of a test.
    resource_tracker.ensure_running()
    ensure_event_loop()  # shared by Jupyter's clients
    # A client that was not stopped must be reported as left behind. Without this, pyzmq would wait
    # without limit until the sockets of a collected context have sent all their messages.
    vars(zmq.sugar.context)["_exiting"] = True


@pytest.hookimpl(optionalhook=True)  # Colab's environment has no pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    scheduling = importlib.import_module("xdist.scheduler").LoadScopeScheduling

    class ByGroup(scheduling):  # type: ignore[misc, valid-type]
        def _split_scope(self, nodeid: str) -> str:
            folder, file = parts(nodeid)
            return next((one[0] for one in TOGETHER if {folder, file} & set(one)), file)

    config.option.loadscopereorder = False  # FIRST sets the order
    return ByGroup(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: min(places.get(name, len(places)) for name in parts(item.nodeid)))


def pytest_collection_finish() -> None:
    """Exempt permanent objects from garbage collection, which tests run thousands of times."""
    gc.collect()
    gc.freeze()


def parts(nodeid: str) -> tuple[str, str]:
    """The folder in tests/ and the file of a test: ("spmd", "spmd/test_start.py")."""
    file = nodeid.partition("::")[0].removeprefix("tests/")
    return file.partition("/")[0], file


@pytest.fixture(scope="session", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """An XLA_NB_HOME for processes that outlive a test, so that none writes to the user's home."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XLA_NB_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="session")
def torch_xla_says() -> Iterator[Callable[[list[dict[str, Any]]], list[dict[str, Any]]]]:
    """Ask a process with torch_xla how it reads environments; one process for all tests."""
    script = Path(__file__).parent.joinpath("support", "torch_xla_topology.py")
    with subprocess.Popen(
        [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        told, answers = process.stdin, process.stdout
        assert told is not None
        assert answers is not None

        def ask(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
            print(json.dumps(cases), file=told, flush=True)
            found: list[dict[str, Any]] = json.loads(answers.readline())
            return found

        yield ask
        told.close()


@pytest.fixture(scope="session")
def fresh_processes() -> Iterator[None]:
    """The server of support/fresh.py, which forks processes with torch imported, for all tests."""
    yield from fork_server()


@pytest.fixture(scope="session")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worlds]:
    """Run functions of support/worlds/scenarios.py in JAX worlds of several ranks."""
    try:
        torchax.check_versions()
    except LaunchError as missing:
        pytest.skip(str(missing))
    started = Worlds(tmp_path_factory.mktemp("worlds"))
    yield started
    started.close()


@pytest.fixture(autouse=True)
def nothing_left_behind(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    # Not a tmp_path: the names of multiprocessing's sockets in it would be too long, and pytest is
    # slow to create thousands.
    folder = tempfile.mkdtemp(prefix="xla-nb-")
    temporary = f"{folder}/tmp"
    Path(temporary).mkdir()
    monkeypatch.setenv("XLA_NB_HOME", f"{folder}/home")
    monkeypatch.setenv("TMPDIR", temporary)
    monkeypatch.setattr(tempfile, "tempdir", temporary)
    exempt = {kind for mark in request.node.iter_markers("leaves") for kind in mark.args}
    before = {kind: look() for kind, (look, _) in WATCHED.items() if kind not in exempt}
    yield
    left = remaining(before)
    shutil.rmtree(folder, ignore_errors=True)
    for pid, _ in left.get("processes", []):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if left:
        things = [f"{kind}: {told}" for kind, found in left.items() for _, told in found]
        pytest.fail("left behind:\n" + "\n".join(things), pytrace=False)


def remaining(before: dict[str, set[Any]]) -> dict[str, list[tuple[Any, str]]]:
    """Things that exist now but not before the test, each with its description."""
    deadline, collected = time.monotonic() + PATIENCE, False
    while True:
        left = {}
        for kind, known in before.items():
            look, tell = WATCHED[kind]
            found = [(thing, told) for thing in look() - known if (told := tell(thing))]
            if found:
                left[kind] = found
        if not left or time.monotonic() > deadline:
            return left
        if left.keys() != {"processes"} or not collected:  # processes end by themselves
            gc.collect()  # things kept open only by garbage do not count
            collected = True
        time.sleep(0.05)


def pids() -> set[int]:
    return {int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()}


def our_process(pid: int) -> str:
    """Its command line if a test started it, as its ancestors or, for an orphan, MARK show."""
    environ = content(f"/proc/{pid}/environ").split("\0")
    if "=".join(MARK) not in environ and not descends(pid, os.getpid()):
        return ""
    if content(f"/proc/{pid}/comm").strip() == "xla_nb-spare":
        return ""  # a fork server always keeps a spare job
    command = content(f"/proc/{pid}/cmdline").replace("\0", " ").strip()
    if CHROMIUM_HELPER.match(command):
        return ""  # the browser starts and ends its helpers as needed
    return f"{pid} {command[:200] or '(a zombie: nobody waited for it)'}"


def descends(pid: int, ancestor: int) -> bool:
    while pid > 1:
        fields = content(f"/proc/{pid}/stat").rpartition(")")[2].split()
        pid = int(fields[1]) if fields else 0
        if pid == ancestor:
            return True
    return False


def content(path: str) -> str:
    """The text of a file in /proc; "" if the process has ended or belongs to another user."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def open_files() -> set[tuple[str, str]]:
    listed = f"/proc/{os.getpid()}/fd"
    found = set()
    for entry in os.scandir(listed):
        with contextlib.suppress(FileNotFoundError):  # closed by another thread
            target = os.readlink(entry.path)  # noqa: PTH115 # ten times as fast
            if target != listed:  # opened by scandir itself
                found.add((entry.name, target))
    return found


def in_temporary() -> set[str]:
    torchs = getattr(sys.modules.get("torch.distributed.nn.jit.instantiator"), "_TEMP_DIR", None)
    its = {Path(torchs.name).name} if torchs else set()  # created by an import, removed at exit
    return {entry.name for entry in os.scandir(tempfile.gettempdir())} - its


# For each kind: list everything, and describe a new thing ("": not started by a test).
WATCHED: dict[str, tuple[Callable[[], set[Any]], Callable[[Any], str]]] = {
    "processes": (pids, our_process),
    "threads": (lambda: set(threading.enumerate()), repr),
    "files": (open_files, " ".join),
    "temporary": (in_temporary, str),
}


@pytest.fixture(scope="session")
def kernel(home: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A kernel with a warm fork server for all tests, which use distinct names. Its runs exceed the
    bytes that a home keeps, so that limit is raised: the kernel would report it."""
    notebook = Notebook()
    notebook.ok("import xla_nb\n%load_ext xla_nb")
    own = str(tmp_path_factory.mktemp("home"))
    notebook.ok(f"__import__('os').environ['XLA_NB_HOME'] = {own!r}")
    notebook.ok("__import__('xla_nb.record.tidying', fromlist=['_']).NBYTES = 1 << 50")
    # The first named semaphore starts this process, which stays like those of `pytest_configure`.
    notebook.ok("from multiprocessing import resource_tracker; resource_tracker.ensure_running()")
    notebook.ok("%%xla_spawn -n 1\ndef warm(rank): pass", timeout=300)
    yield notebook
    notebook.close()


@pytest.fixture(scope="session", autouse=True)
def warm_kernels(home: None) -> Iterator[Warm]:
    """For a test's own kernels that import torch_xla anyway (`Notebook(warm=...)`), and for the
    fork servers of all kernels."""
    started = Warm()
    Notebook.servers = started
    yield started
    Notebook.servers = None
    started.close()


@pytest.fixture
def notebook(kernel: Notebook) -> Notebook:
    return kernel


@pytest.fixture
def soon(kernel: Notebook) -> Iterator[None]:
    """Report lost seconds at a quarter of the usual thresholds, so that a test waits less. The
    thresholds themselves are tested in tests/views/test_diagnosis.py."""
    all_of_them = "conclusions._COST, waits._LONG"
    kernel.ok("from xla_nb.monitor import conclusions, waits")
    kernel.ok(f"without_soon = {all_of_them}")
    kernel.ok(f"{all_of_them} = (seconds / 4 for seconds in without_soon)")
    yield
    kernel.ok(f"{all_of_them} = without_soon")

"""What every test is held to: it leaves nothing behind, and writes nowhere but in its own folders.

After each test no process, thread, open file or file in TMPDIR may be left that was not there
before it; what is on its way out is given a few seconds. What fixtures of a wider scope start is
there before the test, so it does not count. A test that has to leave something says so, with the
reason beside it: `@pytest.mark.leaves("threads")`, of the names in WATCHED below.
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

PATIENCE = 60.0  # seconds for what is on its way out
# Compiling for a CPU takes a third of the time so, and the results are the same to rounding.
QUICK_TO_COMPILE = ("XLA_FLAGS", "--xla_backend_optimization_level=0")
CHROMIUM_HELPER = re.compile(r"\S*/chrom\S* --type=")  # a browser itself has no type
MARK = ("XLA_NB_TEST", uuid.uuid4().hex)  # inherited by all that is started, orphans included
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
# Files and folders that take longest. They come first, or one worker would end long after another.
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
    # These stay once anything needs them: there from the start, no test seems to leave them.
    resource_tracker.ensure_running()
    ensure_event_loop()  # which Jupyter's clients share
    # A client that nobody has stopped is to be told as left behind: pyzmq would wait, as long as it
    # takes, for what the sockets of a context that is collected have yet to send.
    vars(zmq.sugar.context)["_exiting"] = True


@pytest.hookimpl(optionalhook=True)  # Colab's environment does without pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    scheduling = importlib.import_module("xdist.scheduler").LoadScopeScheduling

    class ByGroup(scheduling):  # type: ignore[misc, valid-type]
        def _split_scope(self, nodeid: str) -> str:
            folder, file = parts(nodeid)
            return next((one[0] for one in TOGETHER if {folder, file} & set(one)), file)

    config.option.loadscopereorder = False  # FIRST has the order
    return ByGroup(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: min(places.get(name, len(places)) for name in parts(item.nodeid)))


def pytest_collection_finish() -> None:
    """Tests collect garbage thousands of times: what is there for good need not be looked at."""
    gc.collect()
    gc.freeze()


def parts(nodeid: str) -> tuple[str, str]:
    """The folder of tests/ that has a test, and its file: ("spmd", "spmd/test_start.py")."""
    file = nodeid.partition("::")[0].removeprefix("tests/")
    return file.partition("/")[0], file


@pytest.fixture(scope="session", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where what outlives a test writes, so that nothing is ever written to the user's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XLA_NB_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="session")
def torch_xla_says() -> Iterator[Callable[[list[dict[str, Any]]], list[dict[str, Any]]]]:
    """Asks a process that has torch_xla what it makes of environments; one for all tests."""
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
    """What support/fresh.py forks: processes that have imported torch; one server for all tests."""
    yield from fork_server()


@pytest.fixture(scope="session")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worlds]:
    """Runs functions of support/worlds/scenarios.py in JAX worlds of several ranks."""
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
    # Not in a tmp_path: sockets that multiprocessing makes there would have too long a name, and
    # pytest is slow to make thousands.
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
    """What is there now and was not before, each thing with its description."""
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
        if left.keys() != {"processes"} or not collected:  # those end by themselves
            gc.collect()  # what only garbage holds open is not left behind
            collected = True
        time.sleep(0.05)


def pids() -> set[int]:
    return {int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()}


def our_process(pid: int) -> str:
    """Its command line if a test started it: known by its ancestors or, an orphan, by the mark."""
    environ = content(f"/proc/{pid}/environ").split("\0")
    if "=".join(MARK) not in environ and not descends(pid, os.getpid()):
        return ""
    if content(f"/proc/{pid}/comm").strip() == "xla_nb-spare":
        return ""  # a fork server's next job, which it always has
    command = content(f"/proc/{pid}/cmdline").replace("\0", " ").strip()
    if CHROMIUM_HELPER.match(command):
        return ""  # a page's or a service's: they come, go and end as their browser pleases
    return f"{pid} {command[:200] or '(a zombie: nobody waited for it)'}"


def descends(pid: int, ancestor: int) -> bool:
    while pid > 1:
        fields = content(f"/proc/{pid}/stat").rpartition(")")[2].split()
        pid = int(fields[1]) if fields else 0
        if pid == ancestor:
            return True
    return False


def content(path: str) -> str:
    """A file of /proc; nothing if the process is gone meanwhile, or is another user's."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def open_files() -> set[tuple[str, str]]:
    listed = f"/proc/{os.getpid()}/fd"
    found = set()
    for entry in os.scandir(listed):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile, by another thread
            target = os.readlink(entry.path)  # noqa: PTH115 # ten times as fast
            if target != listed:  # the listing's own, whose number may differ the next time
                found.add((entry.name, target))
    return found


def in_temporary() -> set[str]:
    torchs = getattr(sys.modules.get("torch.distributed.nn.jit.instantiator"), "_TEMP_DIR", None)
    its = {Path(torchs.name).name} if torchs else set()  # made by an import, gone at the exit
    return {entry.name for entry in os.scandir(tempfile.gettempdir())} - its


# What is looked at: everything there, and what to say of a thing that is new ("": not ours).
WATCHED: dict[str, tuple[Callable[[], set[Any]], Callable[[Any], str]]] = {
    "processes": (pids, our_process),
    "threads": (lambda: set(threading.enumerate()), repr),
    "files": (open_files, " ".join),
    "temporary": (in_temporary, str),
}


@pytest.fixture(scope="session")
def kernel(home: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A kernel for all tests, its fork server warm; each test uses names of its own. It has more
    bytes of runs than a home keeps, and would say so."""
    notebook = Notebook()
    notebook.ok("import xla_nb\n%load_ext xla_nb")
    own = str(tmp_path_factory.mktemp("home"))
    notebook.ok(f"__import__('os').environ['XLA_NB_HOME'] = {own!r}")
    notebook.ok("__import__('xla_nb.record.tidying', fromlist=['_']).NBYTES = 1 << 50")
    # A process that stays, as those of `pytest_configure`: of the first semaphore with a name.
    notebook.ok("from multiprocessing import resource_tracker; resource_tracker.ensure_running()")
    notebook.ok("%%xla_spawn -n 1\ndef warm(rank): pass", timeout=300)
    yield notebook
    notebook.close()


@pytest.fixture(scope="session", autouse=True)
def warm_kernels(home: None) -> Iterator[Warm]:
    """For kernels of a test's own which import torch_xla all the same, `Notebook(warm=...)`, and
    for the fork servers of all."""
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
    """A quarter of the seconds that have to be lost for something to be said of them: a test then
    waits for no more. How many there have to be is tested in tests/views/test_diagnosis.py."""
    all_of_them = "conclusions._COST, waits._LONG"
    kernel.ok("from xla_nb.run import conclusions, waits")
    kernel.ok(f"without_soon = {all_of_them}")
    kernel.ok(f"{all_of_them} = (seconds / 4 for seconds in without_soon)")
    yield
    kernel.ok(f"{all_of_them} = without_soon")

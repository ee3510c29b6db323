"""xla_nb.spawn without a notebook: in plain scripts and plain IPython."""

import subprocess
import sys
import weakref
from types import SimpleNamespace

import pytest

import xla_nb
from tests.support.kernel import unfolded
from xla_nb import api
from xla_nb.errors import LaunchError
from xla_nb.program.build import Scope
from xla_nb.record.files import Record


def python(*arguments, folder, given=None):
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
        cwd=folder,
        input=given,
    )


SCRIPT = """
import functools, math
import xla_nb

WEIGHT = 10

class Point:
    def __init__(self, x):
        self.x = x

def helper(rank, add):
    return Point(WEIGHT * rank + add)

run = xla_nb.spawn(helper, (5,), n=2)
print("OWN CLASS", all(type(p) is Point for p in run.results.values()), run[1].x)

factor = 3
print("LAMBDA", xla_nb.spawn(lambda rank: rank * factor, n=2).results)
print("IMPORTED", xla_nb.spawn(math.sqrt, n=2).results)
print("PARTIAL", xla_nb.spawn(functools.partial(pow, 3), n=2).results)

def failing(rank, lock):
    with lock:
        if rank == 1:
            raise ValueError("from a script")

run = xla_nb.spawn(failing, n=2, keep_going=True)
print("FAILED", run.errors[1].message, run.errors[1].place)
try:
    xla_nb.spawn(failing, n=2)
except xla_nb.RunFailed as error:
    print("RAISED", error.run.ok)

xla_nb.spawn(lambda rank: print("hi"), n=2)._ipython_display_()
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """The output of SCRIPT and its folder; run once because each run imports torch_xla."""
    folder = tmp_path_factory.mktemp("script")
    (folder / "train.py").write_text(SCRIPT)
    done = python("train.py", folder=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout, folder


@pytest.mark.parametrize(
    "line",
    [
        "OWN CLASS True 15",
        "LAMBDA {0: 0, 1: 3}",
        "IMPORTED {0: 0.0, 1: 1.0}",
        "PARTIAL {0: 1, 1: 3}",
        "RAISED False",
    ],
)
def test_a_plain_script_needs_no_main_guard(script, line):
    assert line in script[0]


def test_displaying_a_run_in_a_terminal_prints_one_line(script):
    *_, summary, shown = script[0].splitlines()
    assert {"[0] hi", "[1] hi"} <= set(unfolded(script[0]))
    assert summary.startswith("2 ranks finished · ")
    assert shown.startswith("<Run ")


def test_a_failure_names_the_line_of_the_script(script):
    line = SCRIPT.splitlines().index('            raise ValueError("from a script")') + 1
    assert f"FAILED from a script {script[1]}/train.py, line {line}" in script[0].replace(
        " train.py", f" {script[1]}/train.py"
    )


ABOUT_ITSELF = '''"""What it trains."""
import inspect
import multiprocessing
import sys
from pathlib import Path
import xla_nb

class Net:
    pass

def of_a_worker(_):
    return Path(__file__).name, __name__

def train(rank):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        (in_a_worker,) = pool.map(of_a_worker, [0])
    data = (Path(__file__).parent / "data.txt").read_text()
    about = __file__, sys.path[0], __doc__, __spec__
    return *about, data, inspect.getsource(Net), in_a_worker

if __name__ == "__main__":
    print(xla_nb.spawn(train, n=2)[1])
'''


@pytest.mark.slow
def test_a_script_finds_its_own_file_on_ranks_and_in_worker_processes(tmp_path):
    (tmp_path / "train.py").write_text(ABOUT_ITSELF)
    (tmp_path / "data.txt").write_text("beside it")
    done = python("train.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    found = (
        *(str(tmp_path / "train.py"), str(tmp_path), "What it trains.", None),
        *("beside it", "class Net:\n    pass\n", ("train.py", "__mp_main__")),
    )
    assert str(found) in done.stdout


PACKAGE = """
import xla_nb
from . import helper
from .helper import f

def lazily():
    from . import helper as found
    yield found.f()

def train(rank):
    from .helper import f as found
    try:
        get_ipython()
    except NameError:
        pass
    return f(), helper.f(), found(), *lazily(), __package__, __spec__.name

if __name__ == "__main__":
    print(xla_nb.spawn(train, n=2)[1])
"""


@pytest.mark.slow
def test_relative_imports_work_for_a_module_run_with_python_m(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "helper.py").write_text("def f():\n    return 'helped'\n")
    (tmp_path / "package" / "train.py").write_text(PACKAGE)
    done = python("-W", "error::ImportWarning", "-m", "package.train", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert str((*["helped"] * 4, "package", "package.train")) in done.stdout


PROCESS = """
import sys, warnings
import xla_nb

class Found:
    def __init__(self, values):
        self.values = values

def look(rank):
    try:
        warnings.warn("heard")
    except UserWarning:
        heard = "as an error"
    flags = sys.flags.bytes_warning, sys.flags.utf8_mode, sys.warnoptions
    limit, file = sys.get_int_max_str_digits(), globals().get("__file__")
    return Found((flags, limit, heard, file, __doc__)).values

here, there = look(0), xla_nb.spawn(look, n=2)[1]
print("THE SAME" if here == there else (here, there))
"""
OPTIONS = ["-b", *("-X", "utf8"), *("-X", "int_max_str_digits=9999"), *("-W", "error")]


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        pytest.param(["train.py"], None, marks=pytest.mark.slow),
        pytest.param(["-"], PROCESS, marks=pytest.mark.slow),
        pytest.param(["-c", PROCESS], None, marks=pytest.mark.slow),
        pytest.param(
            ["-c", "import runpy; runpy.run_path('train.py')"], None, marks=pytest.mark.slow
        ),
    ],
)
def test_ranks_inherit_interpreter_options_however_the_script_is_run(tmp_path, arguments, given):
    (tmp_path / "train.py").write_text(PROCESS)
    done = python(*OPTIONS, *arguments, folder=tmp_path, given=given)
    assert "THE SAME" in done.stdout, done.stdout + done.stderr


CELLS = [
    "%load_ext xla_nb",
    "%%xla_spawn -n 2\ndef f(rank):\n    import torch, torch_xla\n    print('on', rank)\n"
    "    return rank + int(torch.full((), 7))",
    "print(_.results)",
    "print('IMPORTED', [name for name in __import__('sys').modules if name.startswith('torch')])",
    "%xla_start -n 1",
    "%%xla --view none\nrank",
    "%xla_ranks",
    "import xla_nb\nxla_nb.ranks()",
    "%xla_shutdown",
]


@pytest.fixture(scope="module")
def plain_ipython(tmp_path_factory):
    """The output of CELLS in IPython without a kernel."""
    run_cells = "\n".join(f"get_ipython().run_cell({cell!r})" for cell in CELLS)
    folder = tmp_path_factory.mktemp("ipython")
    done = python("-m", "IPython", "--colors=NoColor", "-c", run_cells, folder=folder)
    return done.stdout + done.stderr


def test_magics_work_in_plain_ipython(plain_ipython):
    assert "[1] on 1" in plain_ipython
    assert "{0: 7, 1: 8}" in plain_ipython


def test_plain_ipython_shows_live_ranks_as_text(plain_ipython):
    lines = plain_ipython.splitlines()
    assert "Started rank 0." in lines
    (title,) = (line for line in lines if line.startswith("○ 1 live rank, idle for "))
    assert "1 cell" in title
    assert "<Ranks 'ranks': rank 0, alive>" in plain_ipython
    assert "Ended rank 0." in lines


def test_a_launch_imports_neither_torch_nor_torch_xla(plain_ipython):
    assert "IMPORTED []" in plain_ipython


@pytest.mark.parametrize(
    ("on", "said"),
    [
        ("local", r"before any rank started\.$"),
        ("ray", "anything already started on the cluster was ended"),
        ("ray://head:10001", "already reserved stay so for the next launch"),
    ],
)
def test_the_error_of_an_interrupted_launch_says_what_it_leaves_running(monkeypatch, on, said):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "launch", interrupted)
    with pytest.raises(LaunchError, match=said):
        xla_nb.spawn(print, on=on)


def test_dir_lists_the_public_names_and_all_of_them_exist():
    assert set(dir(xla_nb)) == {*xla_nb.__all__, "__version__"}
    for name in xla_nb.__all__:
        assert getattr(xla_nb, name) is not None


@pytest.mark.parametrize("package", [pytest.param("spmd", marks=pytest.mark.slow), "torchax"])
def test_a_public_subpackage_is_available_without_importing_it(package):
    done = python("-c", f"import xla_nb; print(xla_nb.{package}.mesh)", folder="/")
    assert "function mesh" in done.stdout, done.stderr


def test_no_internal_reference_keeps_a_run_that_has_ended(monkeypatch, tmp_path):
    class Ended:
        done, name, record = True, "r1", Record(tmp_path)

    monkeypatch.setattr(api, "launch", lambda *_: Ended())
    run = xla_nb.spawn(print, bg=True, view="none")
    kept = weakref.ref(run)
    del run
    assert kept() is None


def test_options_default_to_the_notebooks_settings(monkeypatch):
    here = SimpleNamespace(
        runs_a_cell=False,
        runs_a_script=False,
        settings={"n": 3, "timeout": 60.0, "keep_going": True},
        top_level=None,
        scope=lambda: Scope({}, []),
    )
    monkeypatch.setattr(api.notebook, "current", lambda: here)
    monkeypatch.setattr(api, "run", lambda program, options, *_: options)
    options = xla_nb.spawn(print, timeout=5, keep_going=False)
    assert (options.n, options.timeout, options.keep_going, options.grace) == (3, 5.0, False, 5.0)


FORKED = """
import os, time
import xla_nb

def main(index):
    return index

def waits(index):
    while not os.path.exists("go"):
        time.sleep(0.01)
    return index

run = xla_nb.spawn(waits, n=2, bg=True)
pid = os.fork()
if not pid:
    print("CHILD", xla_nb.spawn(main, n=2).results, flush=True)
    raise SystemExit
os.waitpid(pid, 0)
open("go", "w").close()
print("PARENT", run.wait().results, flush=True)
print("AGAIN", xla_nb.spawn(main, n=2).results)
"""


def test_a_launch_in_a_process_spawned_by_multiprocessing_is_refused(tmp_path):
    script = tmp_path / "spawned.py"
    script.write_text(
        "import multiprocessing, xla_nb\n"
        "def f(rank): return rank\n"
        "def child():\n"
        "    try: xla_nb.spawn(f, n=2)\n"
        "    except xla_nb.XlaNbError as error: print('REFUSED', error)\n"
        "if __name__ == '__main__':\n"
        "    process = multiprocessing.get_context('spawn').Process(target=child)\n"
        "    process.start(); process.join(); print('EXIT', process.exitcode)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert "REFUSED A process that multiprocessing started with 'spawn'" in done.stdout, done
    assert "EXIT 0" in done.stdout


def test_a_launch_is_refused_where_multiprocessing_imports_the_script(tmp_path):
    (tmp_path / "unguarded.py").write_text(
        "import multiprocessing, xla_nb\n"
        "def f(rank): return rank\n"
        "print('DONE', xla_nb.spawn(f, n=1).results)\n"
        "def child(): pass\n"
        "if __name__ == '__main__':\n"
        "    process = multiprocessing.get_context('spawn').Process(target=child)\n"
        "    process.start(); process.join(); print('EXIT', process.exitcode)\n"
    )
    ended = python("unguarded.py", folder=tmp_path)
    assert ended.stdout.count("DONE") == 1
    assert "UsageError: A process that multiprocessing started with 'spawn'" in ended.stderr
    assert "EXIT 1" in ended.stdout


@pytest.mark.slow
def test_a_forked_process_can_launch_during_its_parents_run(tmp_path):
    (tmp_path / "forked.py").write_text(FORKED)
    ended = python("forked.py", folder=tmp_path)
    for word in ("CHILD", "PARENT", "AGAIN"):
        assert f"{word} {{0: 0, 1: 1}}" in ended.stdout, ended.stderr


BEHIND = """
import pathlib, sys, time
import xla_nb

def slow(rank):
    time.sleep(1)
    pathlib.Path(f"rank{rank}").touch()

xla_nb.spawn(slow, n=2, bg=True)
if "raises" in sys.argv:
    raise KeyboardInterrupt
"""


def test_a_script_ends_after_its_background_runs(tmp_path):
    (tmp_path / "behind.py").write_text(BEHIND)
    ended = python("behind.py", folder=tmp_path)
    assert "Waiting for slow" in ended.stderr
    assert (tmp_path / "rank0").exists()
    assert (tmp_path / "rank1").exists()


def test_an_interrupted_script_does_not_wait_for_its_background_runs(tmp_path):
    (tmp_path / "behind.py").write_text(BEHIND)
    ended = python("behind.py", "raises", folder=tmp_path)
    assert "Waiting" not in ended.stderr
    assert not (tmp_path / "rank0").exists()


@pytest.mark.parametrize("stream", ["None", "Tee()", "open('log', 'w', encoding='ascii')"])
def test_a_launch_needs_no_particular_stdout(tmp_path, stream):
    (tmp_path / "streams.py").write_text(
        "import sys, xla_nb\n"
        "class Tee:\n    def write(self, text): pass\n    def flush(self): pass\n"
        f"sys.stdout = {stream}\n"
        "assert xla_nb.spawn(lambda rank: print('…') or rank, n=2).results == {0: 0, 1: 1}\n"
    )
    ended = python("streams.py", folder=tmp_path)
    assert ended.stderr == ""


def test_a_launch_reports_each_long_wait_once(capsys):
    with api.showing_waits() as on_wait:
        for seconds, what in ((0.1, "quick"), (0.5, "importing …"), (3.24, "importing …")):
            on_wait(seconds, what)
        on_wait(1.0, "waiting for hosts …")
    assert capsys.readouterr().out == "importing …\nwaiting for hosts …\n"


def test_a_launch_without_waits_prints_nothing(capsys):
    with api.showing_waits():
        pass
    assert capsys.readouterr().out == ""


UNDER_TORCHRUN = """
import torch_xla
import xla_nb

def train(rank):
    print("trains", rank)

if __name__ == "__main__":
    xla_nb.install()
    torch_xla.launch(train)
"""


@pytest.mark.slow
def test_a_script_under_torchrun_is_refused_before_it_trains(tmp_path):
    (tmp_path / "train.py").write_text(UNDER_TORCHRUN)
    options = ("--standalone", "--nproc-per-node", "2", "--log-dir", str(tmp_path / "logs"))
    done = python("-m", "torch.distributed.run", *options, "train.py", folder=tmp_path)
    assert done.returncode == 1
    assert "torchrun started this process as one of several" in done.stderr
    assert "trains" not in done.stdout

"""Any cell and any option line produce a program or an error that says where and why.

`make test-all` tries 2,000 cells and 2,000 lines (XLA_NB_ANYTHING sets how many), `make test` only
a few. The cells go through a real IPython and the real magic; only the launch is replaced. Cells
that IPython itself would run in this process are skipped.
"""

from __future__ import annotations

import collections
import contextlib
import io
import linecache
import os
import re
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from tests.support.anything import cells, lines
from xla_nb import api, magics, notebook
from xla_nb.errors import XlaNbError
from xla_nb.program import module_file
from xla_nb.program.build import Program
from xla_nb.program.module_file import ModuleMap
from xla_nb.run.options import Options

MANY = int(os.environ.get("XLA_NB_ANYTHING") or 2000)
FEW = 60
PATIENCE = 20  # seconds per example, on a busy machine

BEFORE = """
import math
n, box, größe = 4, [1, [2]], 1.8
def twice(x): return [x, n, math.pi]
def chained(depth): return [chained(depth - 1)] if depth else []
class Net:
    def run(self, x): return twice(x)
class Rude:
    def __repr__(self): raise ValueError("not telling")
class Angry(Exception):
    def __str__(self): raise ValueError("not telling")
def raise_(): raise Angry
net = Net()
lines = (line for line in "ab")
"""
LAUNCH = """%%xla_spawn
ten = 10
shared = [ten]
class Shape: pass
def scale(rank, by=2): return Shape, shared, n * by
"""
INTERNAL = re.compile(r"<(ast|_ast|xla_nb\.)|object at 0x|xla_nb/|Cell\(|Section\(|Word\(")


class Slow(BaseException):
    """Raised when an example takes longer than PATIENCE."""


class Bench:
    """An IPython with xla_nb's magics; it stores the program instead of launching it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        config = Config()
        config.HistoryManager.enabled = False
        self.shell = InteractiveShell(config=config)
        self.magics = magics.XlaMagics(self.shell)
        self.shell.magics_manager.register(self.magics)
        self.shell.input_transformers_cleanup.append(self.magics.transformed)
        self.shell.events.register("pre_run_cell", self._before_cell)
        self.shell.events.register("post_run_cell", self.magics.after_cell)
        self.shell._showtraceback = lambda *_: None  # type: ignore[method-assign]
        self.launched: Program | None = None
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.troubles: list[BaseException] = []
        patch.setattr(notebook, "current", lambda: notebook.of(self.shell))
        patch.setattr(api, "run", self._launch)
        assert self.run(BEFORE) is None
        assert self.run(LAUNCH) is None
        self.held = self.names

    def _before_cell(self, info: Any) -> None:
        try:
            self.magics.before_cell(info)
        except BaseException as trouble:  # IPython would only print it
            self.troubles.append(trouble)

    def _launch(self, program: Program, options: Options, *_: Any) -> None:
        """Replace `api.run`: let the engine check the options, but start nothing."""
        api.engine_for(options).fit(options.runtime, options.n, options.env)
        self.launched = program

    def run(self, text: str) -> BaseException | None:
        """Run a cell and return the exception that it raised, if any."""
        self._forget()
        self.launched = None
        self.troubles.clear()
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
            _limited(),
        ):
            done = self.shell.run_cell(text, store_history=True)
        assert not self.troubles, self.troubles
        return done.error_before_exec or done.error_in_exec

    def _forget(self) -> None:
        """Forget all cells after the first two, so that each example is the third cell."""
        history = self.shell.history_manager
        del history.input_hist_raw[3:], history.input_hist_parsed[3:]
        self.shell.execution_count = len(history.input_hist_raw)

    @property
    def label(self) -> str:
        """The label of the last cell that ran."""
        return f"Cell In[{notebook.of(self.shell).number}]"

    @property
    def names(self) -> dict[str, str]:
        """The user's names and values, except names that a launch binds."""
        hidden = self.shell.user_ns_hidden
        return {
            name: f"{id(value)} {value if type(value) in (int, list) else ''}"
            for name, value in self.shell.user_ns.items()
            if not (name in hidden or name in "fw" or re.match("_i?[0-9]|__?_?$", name))
        }


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    def late(*_: Any) -> None:
        raise Slow

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(PATIENCE)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    before = set(linecache.cache)
    main = sys.modules["__main__"]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("IPYTHONDIR", folder)
        made = Bench(patch)
        yield made
        print(dict(made.outcomes))  # for docs/reliability.md (pytest -s)
        made.shell.restore_sys_module_state()
    sys.modules["__main__"] = main
    for name in set(linecache.cache) - before:
        del linecache.cache[name]


# ---------------------------------------------------------------- checks


def check_program(program: Program) -> None:
    """Check that it compiles and that its body is the cell."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / f"{program.name}.py"
        module_file.write(program, path)
        table = ModuleMap.open(path)
        compile(path.read_text(), str(path), "exec", 0, True)
        if program.body:
            compile(program.body, "body", "exec", program.flags, True)
            assert program.body == table.body == table.sources[program.label]


def check_message(message: str) -> None:
    assert re.search(r"[.?!)`]$|^ +\^$|^    ", message.splitlines()[-1] if message else ""), message
    assert "\n\n" not in message.strip(), message
    assert not INTERNAL.search(message), message
    assert len(message) < 3000, len(message)


def check_cell(bench: Bench, text: str) -> None:
    if bench.magics.calls_function("-n 2", text):
        return  # IPython runs it
    problem = bench.run(f"%%xla_spawn -n 2\n{text}")
    assert bench.names == bench.held
    if isinstance(problem, UnicodeEncodeError):  # from IPython itself, with Python 3.12 and later
        return
    if isinstance(problem, UsageError):  # likewise
        assert str(problem) == "%%xla_spawn is a cell magic, but the cell body is empty."
        return
    if problem is None:
        assert bench.launched is not None
        check_program(bench.launched)
        bench.outcomes["programs"] += 1
        return
    assert isinstance(problem, XlaNbError), repr(problem)
    message = str(problem)
    check_message(message)
    named = re.search(r"(Cell In\[\d+\])(?:, line (\d+))?", message)
    assert named, message
    if named[1] == bench.label and named[2]:
        assert 1 <= int(named[2]) <= len(re.split("\r\n|\r|\n", text)) + 1, message
    bench.outcomes[type(problem).__name__] += 1


def check_line(bench: Bench, text: str) -> None:
    problem = bench.run(f"%%xla_spawn {text}\ndef f(rank, *args): return rank, args")
    assert bench.names == bench.held
    if problem is None:
        assert bench.launched is not None
        bench.outcomes["programs"] += 1
        return
    if isinstance(problem, UnicodeEncodeError):  # as in a cell
        return
    assert isinstance(problem, XlaNbError), repr(problem)
    check_message(str(problem))
    bench.outcomes[type(problem).__name__] += 1


# ---------------------------------------------------------------- tests


def tried(count: int, what: Any) -> Callable[[Any], Any]:
    def wrapped(function: Any) -> Any:
        chosen = settings(
            max_examples=count,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        return chosen(given(what)(function))

    return wrapped


@tried(FEW, cells())
def test_a_cell_gives_a_program_or_says_where_it_is_wrong(bench: Bench, text: str) -> None:
    check_cell(bench, text)


@tried(FEW, lines())
def test_a_line_gives_a_launch_or_says_what_is_wrong(bench: Bench, text: str) -> None:
    check_line(bench, text)


@pytest.mark.chaos
@tried(MANY, cells())
def test_thousands_of_cells_give_programs_or_errors(bench: Bench, text: str) -> None:
    check_cell(bench, text)


@pytest.mark.chaos
@tried(MANY, lines())
def test_thousands_of_lines_give_launches_or_errors(bench: Bench, text: str) -> None:
    check_line(bench, text)

"""Exceptions from user code, as the notebook shows them."""

import linecache
import textwrap
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest

from xla_nb import wording
from xla_nb.program import tracebacks
from xla_nb.program.module_file import ModuleMap
from xla_nb.rank import loader, reporting, step_changes

CELL, OTHER = "Cell In[3]", "Cell In[5]"
LABELS = {CELL, OTHER}


@pytest.fixture(autouse=True)
def sources(monkeypatch):
    """Restore linecache after each test."""
    monkeypatch.setattr(linecache, "cache", dict(linecache.cache))


def define(source, label=CELL, **names):
    """The names that a cell defines."""
    source = textwrap.dedent(source).lstrip("\n")
    loader.remember(label, source)
    exec(compile(source, label, "exec"), names)
    return names


def raised(call, *args):
    """The exception that a call raises, without this file's frame in its traceback."""
    with pytest.raises(BaseException) as caught:
        call(*args)
    return caught.value.with_traceback(caught.tb.tb_next)


def failure(source, **names):
    """The failure of a cell's function `f`, called as a rank calls it."""
    table = ModuleMap({}, OTHER, body="f()")
    loader.remember(OTHER, "f()")
    return tracebacks.tell(raised(loader.run_body, table, define(source, **names)), {CELL})


def test_traceback_starts_at_the_first_cell_or_below_xla_nb():
    got = failure("def f():\n    raise ValueError('boom')")
    assert got.message == "boom"
    assert got.text == (
        "Traceback (most recent call last):\n"
        '  File "Cell In[3]", line 2, in f\n'
        "    raise ValueError('boom')\nValueError: boom"
    )
    table = ModuleMap({}, "elsewhere", body="wrap('a', 0)")
    got = tracebacks.tell(raised(loader.run_body, table, {"wrap": textwrap.wrap}), set())
    assert "loader.py" not in got.text
    assert 'File "elsewhere", line 1' in got.text and textwrap.__file__ in got.text
    assert got.place == ""
    got = tracebacks.tell(ValueError("bare"), LABELS)
    assert (got.text, got.place) == ("ValueError: bare", "")


def test_causes_start_at_the_first_cell_and_frames_of_all_cells_are_kept():
    def above():  # JAX gives a cause the frames of the whole process
        define("def f():\n    raise ValueError('boom')")["f"]()

    with pytest.raises(ValueError) as caught:
        above()
    error = KeyError("other")
    error.__cause__ = caught.value
    text = tracebacks.tell(error, LABELS).text
    assert "in f\n    raise ValueError('boom')" in text
    assert "in above" not in text
    inner = define("def g():\n    return 1 / 0", OTHER)
    outer = define("def f():\n    return g()", g=inner["g"])
    got = tracebacks.tell(raised(outer["f"]), LABELS)
    assert got.place == "Cell In[5], line 2"
    assert "return g()" in got.text and "return 1 / 0" in got.text


def test_errors_raised_or_passed_on_by_xla_nb_show_only_user_lines():
    got = failure("def f():\n    len(progress(iter([])))", progress=reporting.progress)
    lines = [line for line in got.text.splitlines() if line.strip("~^ ")]  # marks, from 3.13 on
    assert lines == [
        "Traceback (most recent call last):",
        '  File "Cell In[3]", line 2, in f',
        "    len(progress(iter([])))",
        "TypeError: list_iterator has no length; pass total=",
    ]
    cell = "def items():\n    raise KeyError('x')\n    yield\ndef f():\n    list(progress(items()))"
    got = failure(cell, progress=reporting.progress)
    files = [line for line in got.text.splitlines() if line.startswith("  File")]
    assert [line.split(", ")[0] for line in files] == ['  File "Cell In[3]"'] * 2
    got = failure("def f():\n    spans(5)", spans=wording.ranks)  # a bug in xla_nb
    assert got.text.splitlines()[-1].startswith("TypeError: 'int' object is not iterable")
    assert wording.__file__ in got.text


@pytest.mark.parametrize("call", ["functional.cross_entropy(x, y)", "functional.conv2d(x, x)"])
def test_recorded_operation_fails_like_any_other(call):
    torch = pytest.importorskip("torch")
    names = {"functional": torch.nn.functional, "x": torch.ones(2, 3), "y": torch.ones(1).long()}
    cell = f"def f():\n    with mode:\n        {call}"
    noting = step_changes._mode(step_changes.StepChanges(LABELS)._call)
    plain, noted = (failure(cell, mode=mode, **names) for mode in (nullcontext(), noting))
    assert noted == plain


#: Cell, and the kind, line and parts of the text of its error.
TOLD = {
    "the innermost notebook line and its calls": (
        "import textwrap\ndef g():\n    textwrap.wrap('a', 0)\ndef f():\n    g()",
        "ValueError",
        3,
        ["    textwrap.wrap('a', 0)\n", f'  File "{textwrap.__file__}"'],
    ),
    "notes, and a notebook error class without its module": (
        "class Odd(Exception): pass\ndef f():\n    e = Odd('v')\n    e.add_note('mind the gap')\n"
        "    raise e",
        "Odd",
        5,
        ["\nOdd: v\nmind the gap"],
    ),
    "sys.exit": ("import sys\ndef f():\n    sys.exit(3)", "SystemExit", 3, []),
    "a library error with its module, after its contexts": (
        "import json\ndef f():\n    try:\n        try: {}['key']\n        except KeyError: 1 / 0\n"
        "    except ZeroDivisionError: json.loads('{')\n",
        "json.decoder.JSONDecodeError",
        6,
        [
            '"Cell In[3]", line 4',
            "KeyError: 'key'\n\nDuring handling of the above exception",
            "ZeroDivisionError: division by zero\n\nDuring",
        ],
    ),
    "a group with the line of each error": (
        "def part(n):\n    raise ValueError(f'part {n}')\ndef f():\n    errors = []\n"
        "    for n in (1, 2):\n        try: part(n)\n"
        "        except ValueError as error: errors.append(error)\n"
        "    raise ExceptionGroup('parts', errors)",
        "ExceptionGroup",
        8,
        [
            "ExceptionGroup: parts (2 sub-exceptions)",
            *('"Cell In[3]", line 2, in part', "ValueError: part 1"),
            *('"Cell In[3]", line 2, in part', "ValueError: part 2"),
        ],
    ),
    "an error of xla_nb without its frames": (
        "from xla_nb.rank.loader import RankShell\ndef f():\n"
        "    RankShell().run_line_magic('timeit', 'x')",
        "UsageError",
        3,
        ["RankShell().run_line_magic('timeit', 'x')", "\nUsageError: %timeit does not work"],
    ),
}


@pytest.mark.parametrize(("source", "kind", "line", "parts"), TOLD.values(), ids=TOLD)
def test_failure_has_the_kind_place_and_text_of_the_error(source, kind, line, parts):
    got = failure(source, __name__="__main__")
    assert (got.kind, got.place) == (kind, f"Cell In[3], line {line}")
    assert "xla_nb/" not in got.text
    at = 0
    for part in parts:  # in this order
        at = got.text.index(part, at) + len(part)


def test_suppressed_context_is_omitted_and_a_raising_str_is_reported():
    got = failure("def f():\n    try: {}['key']\n    except KeyError: raise ValueError() from None")
    assert "KeyError: 'key'" not in got.text
    odd = "class Odd(Exception):\n    def __str__(self): 1 / 0\ndef f():\n    raise Odd()"
    assert failure(odd).message == "<its str() raised ZeroDivisionError>"


def test_recursion_has_a_short_traceback_that_counts_repeated_lines():
    got = failure("def f(n=0):\n    return f(n + 1) if n < 600 else 1 / 0")
    assert "[Previous line repeated 598 more times]" in got.text
    assert (got.kind, got.place) == ("ZeroDivisionError", "Cell In[3], line 2")
    assert got.text.count("\n") < 20
    got = failure("def f():\n    g()\ndef g():\n    f()")
    assert got.kind == "RecursionError"
    assert got.text.count("  File ") == tracebacks.DEPTH
    lines = [f"def f{n}(): f{n + 1}()" for n in range(2 * tracebacks.DEPTH)]
    got = failure("\n".join([*lines, f"def f{len(lines)}(): 1 / 0", "f = f0"]))
    assert got.text.count("  File ") == tracebacks.DEPTH  # the innermost
    assert got.place == f"Cell In[3], line {len(lines) + 1}"


TWO_PLACES = "def f():\n    if {one}: raise {error}('{word}')\n    raise {error}('{word}')"
TWO_PATHS = "def g(): 1 / 0\ndef f():\n    if {one}: g()\n    g()"


def where(source=TWO_PLACES, error="ValueError", word="w", one=True):
    return failure(source.format(error=error, word=word, one=one)).where


def test_errors_are_the_same_if_kind_and_lines_match_despite_their_messages():
    assert where(word="on 1") == where(word="on 2")
    assert where(one=True) != where(one=False)
    assert where(error="ValueError") != where(error="TypeError")
    assert where(TWO_PATHS, one=True) != where(TWO_PATHS, one=False)


@pytest.fixture
def blocked():
    """A thread blocked in a function of a cell."""
    inside, leave = threading.Event(), threading.Event()
    wait = define(
        "def outer():\n    wait()\ndef wait():\n    inside.set() or leave.wait()",
        inside=inside,
        leave=leave,
    )["outer"]
    thread = threading.Thread(target=wait)
    thread.start()
    assert inside.wait(10)
    yield thread
    leave.set()
    thread.join()


def test_thread_has_its_innermost_notebook_line_and_the_stack_from_its_first(blocked):
    place, stack = tracebacks.locate(blocked.ident, LABELS)
    assert place == tracebacks.innermost(blocked.ident, LABELS) == "Cell In[3], line 4"
    assert stack.startswith('  File "Cell In[3]", line 2, in outer\n    wait()\n')
    assert "_bootstrap" not in stack
    place, stack = tracebacks.locate(blocked.ident, set())  # no notebook frames
    assert place == tracebacks.innermost(blocked.ident, set()) == ""
    assert "_bootstrap" in stack


def test_thread_stack_ends_where_it_called_the_simulated_device(monkeypatch):
    names, told = define("def f(call):\n    call()"), []
    monkeypatch.setattr(tracebacks, "_DEVICE", Path(__file__).parent)
    names["f"](lambda: told.extend(tracebacks.locate(threading.get_ident(), LABELS)))
    assert told[1] == '  File "Cell In[3]", line 2, in f\n    call()'


def test_thread_stack_ends_where_it_called_xla_nb_and_an_ended_thread_is_reported():
    names, told = define("def f(call):\n    call()"), []
    names["f"](lambda: told.extend(tracebacks.locate(threading.get_ident(), LABELS)))
    place, stack = told
    assert place == "Cell In[3], line 2"
    assert "tests/program/test_tracebacks.py" in stack
    assert "xla_nb/program/tracebacks.py" not in stack
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    assert tracebacks.locate(thread.ident, LABELS) == ("", f"thread {thread.ident} has ended")
    assert tracebacks.innermost(thread.ident, LABELS) == ""

"""An exception of the user's code, as the notebook shows it."""

import linecache
import textwrap
import threading

import pytest

from xla_nb import wording
from xla_nb.errors import UsageError
from xla_nb.program import tracebacks
from xla_nb.program.module_file import ModuleMap
from xla_nb.rank import loader, reporting

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
    """The exception of a call, without this file's frame in its traceback."""
    with pytest.raises(BaseException) as caught:
        call(*args)
    return caught.value.with_traceback(caught.tb.tb_next)


def failure(source, **names):
    """The failure when a cell's function `f` is called as a rank calls it."""
    table = ModuleMap({}, OTHER, body="f()")
    loader.remember(OTHER, "f()")
    return tracebacks.tell(raised(loader.run_body, table, define(source, **names)), {CELL})


def test_a_traceback_starts_at_the_first_cell():
    got = failure("def f():\n    raise ValueError('boom')")
    assert got.text == (
        "Traceback (most recent call last):\n"
        '  File "Cell In[3]", line 2, in f\n'
        "    raise ValueError('boom')\n"
        "ValueError: boom"
    )


def test_causes_are_told_from_the_first_cell_on_too():
    def above():  # JAX gives a cause the frames of the whole process
        define("def f():\n    raise ValueError('boom')")["f"]()

    with pytest.raises(ValueError) as caught:
        above()
    error = KeyError("other")
    error.__cause__ = caught.value
    text = tracebacks.tell(error, LABELS).text
    assert "in f\n    raise ValueError('boom')" in text
    assert "in above" not in text


def test_kind_and_message_are_those_of_the_error():
    got = failure("def f():\n    raise ValueError('boom')")
    assert (got.kind, got.message) == ("ValueError", "boom")


def test_the_place_is_the_innermost_line_of_the_notebook():
    got = failure(
        """
        import textwrap
        def g():
            textwrap.wrap('a', 0)
        def f():
            g()
        """
    )
    assert got.place == "Cell In[3], line 3"


def test_frames_called_by_user_code_are_kept():
    got = failure("import textwrap\ndef f():\n    textwrap.wrap('a', 0)")
    assert textwrap.__file__ in got.text
    assert "textwrap.wrap('a', 0)" in got.text


def test_frames_of_several_cells_are_kept():
    inner = define("def g():\n    return 1 / 0", OTHER)
    outer = define("def f():\n    return g()", g=inner["g"])
    got = tracebacks.tell(raised(outer["f"]), LABELS)
    assert got.place == "Cell In[5], line 2"
    assert "return g()" in got.text
    assert "return 1 / 0" in got.text


def test_only_frames_of_xla_nb_are_cut_outside_the_notebook():
    table = ModuleMap({}, "elsewhere", body="wrap('a', 0)")
    got = tracebacks.tell(raised(loader.run_body, table, {"wrap": textwrap.wrap}), set())
    assert "loader.py" not in got.text
    assert 'File "elsewhere", line 1' in got.text
    assert textwrap.__file__ in got.text
    assert got.place == ""


def test_an_error_may_have_no_traceback():
    got = tracebacks.tell(ValueError("bare"), LABELS)
    assert (got.text, got.place) == ("ValueError: bare", "")


def test_an_error_that_xla_nb_raises_ends_at_the_users_line():
    got = failure("def f():\n    len(progress(iter([])))", progress=reporting.progress)
    lines = [line for line in got.text.splitlines() if line.strip("~^ ")]  # marks, from 3.13 on
    assert lines == [
        "Traceback (most recent call last):",
        '  File "Cell In[3]", line 2, in f',
        "    len(progress(iter([])))",
        "TypeError: list_iterator has no length; pass total=",
    ]


def test_the_loop_of_progress_is_not_shown_between_what_calls_it_and_what_it_calls():
    cell = """
        def items():
            raise KeyError("x")
            yield
        def f():
            list(progress(items()))
    """
    got = failure(cell, progress=reporting.progress)
    files = [line for line in got.text.splitlines() if line.startswith("  File")]
    assert [line.split(", ")[0] for line in files] == ['  File "Cell In[3]"'] * 2


def test_a_fault_of_xla_nb_keeps_its_frames():
    got = failure("def f():\n    spans(5)", spans=wording.ranks)
    assert got.text.splitlines()[-1].startswith("TypeError: 'int' object is not iterable")
    assert wording.__file__ in got.text


# ---------------------------------------------------------------- chains and groups


def test_the_cause_of_an_error_comes_first():
    got = failure(
        """
        def f():
            try:
                {}['key']
            except KeyError as missing:
                raise ValueError('no key') from missing
        """
    )
    first, second = got.text.split("\n\nThe above exception was the direct cause")
    assert first.endswith("KeyError: 'key'")
    assert '"Cell In[3]", line 3' in first
    assert second.endswith("ValueError: no key")
    assert got.place == "Cell In[3], line 5"


def test_the_context_of_an_error_comes_first():
    got = failure("def f():\n    try: {}['key']\n    except KeyError: 1 / 0")
    first, second = got.text.split("\n\nDuring handling of the above exception")
    assert first.endswith("KeyError: 'key'")
    assert second.endswith("ZeroDivisionError: division by zero")


def test_a_suppressed_context_is_left_out():
    got = failure(
        "def f():\n    try: {}['key']\n    except KeyError: raise ValueError('no key') from None"
    )
    assert "KeyError: 'key'" not in got.text


def test_each_error_of_a_group_has_its_line():
    got = failure(
        """
        def part(n):
            raise ValueError(f'part {n}')
        def f():
            errors = []
            for n in (1, 2):
                try:
                    part(n)
                except ValueError as error:
                    errors.append(error)
            raise ExceptionGroup('parts', errors)
        """
    )
    assert got.kind == "ExceptionGroup"
    assert got.message == "parts (2 sub-exceptions)"
    assert got.place == "Cell In[3], line 10"
    for line in ("ValueError: part 1", "ValueError: part 2"):
        assert line in got.text
    assert got.text.count('"Cell In[3]", line 2, in part') == 2


def test_notes_are_included():
    got = failure("def f():\n    e = ValueError('v')\n    e.add_note('mind the gap')\n    raise e")
    assert got.text.endswith("ValueError: v\nmind the gap")


# ---------------------------------------------------------------- kinds


def test_library_errors_are_named_with_their_module():
    assert (
        failure("import json\ndef f():\n    json.loads('{')").kind == "json.decoder.JSONDecodeError"
    )


def test_errors_of_the_notebook_are_named_without_a_module():
    got = failure(
        "class Odd(Exception): pass\ndef f():\n    raise Odd('x')",
        __name__="__main__",
    )
    assert got.kind == "Odd"
    assert got.text.endswith("\nOdd: x")


def test_an_error_of_xla_nb_has_no_frames_of_xla_nb():
    got = failure(
        """
        from xla_nb.rank.shell import RankShell
        def f():
            RankShell().run_line_magic('timeit', 'x')
        """
    )
    assert got.kind == UsageError.__name__
    assert got.place == "Cell In[3], line 3"
    assert "shell.py" not in got.text
    assert "xla_nb.errors" not in got.text
    assert "RankShell().run_line_magic('timeit', 'x')" in got.text
    assert "\nUsageError: %timeit does not work on ranks" in got.text


def test_an_error_whose_str_raises_is_reported():
    got = failure("class Odd(Exception):\n    def __str__(self): 1 / 0\ndef f():\n    raise Odd()")
    assert got.message == "<its str() raised ZeroDivisionError>"
    assert got.place == "Cell In[3], line 4"
    assert "raise Odd()" in got.text


def test_a_syntax_error_in_compiled_text_shows_its_place():
    got = failure("def f():\n    compile('x = = 1', 'given.py', 'exec')")
    assert got.kind == "SyntaxError"
    assert got.place == "Cell In[3], line 2"
    assert 'File "given.py", line 1\n    x = = 1\n        ^' in got.text


def test_system_exit_is_reported_like_an_error():
    assert failure("import sys\ndef f():\n    sys.exit(3)").kind == "SystemExit"


# ---------------------------------------------------------------- depth


def test_infinite_recursion_has_a_short_traceback():
    got = failure("def f():\n    return f()")
    assert got.kind == "RecursionError"
    assert got.place == "Cell In[3], line 2"
    assert got.text.count("\n") < 20


def test_a_deep_stack_keeps_its_innermost_frames():
    lines = [f"def f{n}(): f{n + 1}()" for n in range(2 * tracebacks.DEPTH)]
    got = failure("\n".join([*lines, f"def f{len(lines)}(): 1 / 0", "f = f0"]))
    assert got.text.count("  File ") == tracebacks.DEPTH
    assert got.place == f"Cell In[3], line {len(lines) + 1}"


# ---------------------------------------------------------------- the same error?

TWO_PLACES = "def f():\n    if {one}: raise {error}('{word}')\n    raise {error}('{word}')"


def where(error="ValueError", word="w", one=True):
    return failure(TWO_PLACES.format(error=error, word=word, one=one)).where


def test_errors_at_one_line_are_the_same_whatever_their_message():
    assert where(word="on 1") == where(word="on 2")


def test_errors_at_two_lines_differ():
    assert where(one=True) != where(one=False)


def test_errors_of_two_kinds_at_one_line_differ():
    assert where("ValueError") != where("TypeError")


def test_errors_reached_by_two_paths_differ():
    source = "def g(): 1 / 0\ndef f():\n    if {}: g()\n    g()"
    assert failure(source.format(True)).where != failure(source.format(False)).where


# ---------------------------------------------------------------- the line of a thread


@pytest.fixture
def blocked():
    """A thread that waits in a function of a cell."""
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


def test_locate_returns_the_innermost_line_of_the_notebook(blocked):
    place, _ = tracebacks.locate(blocked.ident, LABELS)
    assert place == "Cell In[3], line 4"


def test_the_stack_of_a_thread_starts_in_the_notebook(blocked):
    _, stack = tracebacks.locate(blocked.ident, LABELS)
    assert stack.startswith('  File "Cell In[3]", line 2, in outer\n    wait()\n')
    assert "_bootstrap" not in stack


def test_the_stack_of_a_thread_ends_where_it_called_xla_nb():
    told = {}
    names = define("def f(call):\n    call()")

    def look():
        told["stack"] = tracebacks.locate(threading.get_ident(), LABELS)

    names["f"](look)
    assert told["stack"][0] == "Cell In[3], line 2"
    assert "tests/program/test_tracebacks.py" in told["stack"][1]
    assert "xla_nb/program/tracebacks.py" not in told["stack"][1]


def test_innermost_agrees_with_locate(blocked):
    assert tracebacks.innermost(blocked.ident, LABELS) == "Cell In[3], line 4"


def test_a_thread_outside_the_notebook_has_no_innermost_line(blocked):
    assert tracebacks.innermost(blocked.ident, set()) == ""


def test_an_ended_thread_has_no_innermost_line():
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    assert tracebacks.innermost(thread.ident, LABELS) == ""


def test_a_thread_outside_the_notebook_has_a_stack_without_a_place(blocked):
    place, stack = tracebacks.locate(blocked.ident, set())
    assert place == ""
    assert "_bootstrap" in stack


def test_locating_an_ended_thread_says_so():
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    assert tracebacks.locate(thread.ident, LABELS) == ("", f"thread {thread.ident} has ended")

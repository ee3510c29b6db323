"""An exception of the user's code, as a person in the notebook reads it."""

import linecache
import textwrap
import threading

import pytest

from xla_nb.errors import UsageError
from xla_nb.program import tracebacks
from xla_nb.program.module_file import ModuleMap
from xla_nb.rank import loader

CELL, OTHER = "Cell In[3]", "Cell In[5]"
LABELS = {CELL, OTHER}


@pytest.fixture(autouse=True)
def sources(monkeypatch):
    """What the tests let linecache know is forgotten after each."""
    monkeypatch.setattr(linecache, "cache", dict(linecache.cache))


def define(source, label=CELL, **names):
    """The names that a cell leaves behind."""
    source = textwrap.dedent(source).lstrip("\n")
    loader.remember(label, source)
    exec(compile(source, label, "exec"), names)
    return names


def raised(call, *args):
    """What a call raises, its traceback without the frame of this file."""
    with pytest.raises(BaseException) as caught:
        call(*args)
    return caught.value.with_traceback(caught.tb.tb_next)


def told(source, **names):
    """What is told when the function `f` of a cell is called the way a rank calls it."""
    table = ModuleMap((), {}, body=(OTHER, 1, "f()"))
    loader.remember(OTHER, "f()")
    return tracebacks.tell(raised(loader.run_body, table, define(source, **names)), {CELL})


def test_an_error_is_told_from_the_first_cell_on_without_frames_of_ours():
    got = told("def f():\n    raise ValueError('boom')")
    assert got.text == (
        "Traceback (most recent call last):\n"
        '  File "Cell In[3]", line 2, in f\n'
        "    raise ValueError('boom')\n"
        "ValueError: boom"
    )


def test_kind_and_message_are_the_errors_own():
    got = told("def f():\n    raise ValueError('boom')")
    assert (got.kind, got.message) == ("ValueError", "boom")


def test_the_place_is_the_innermost_line_of_the_notebook():
    got = told(
        """
        import textwrap
        def g():
            textwrap.wrap('a', 0)
        def f():
            g()
        """
    )
    assert got.place == "Cell In[3], line 3"


def test_what_the_users_code_called_is_told_whole():
    got = told("import textwrap\ndef f():\n    textwrap.wrap('a', 0)")
    assert textwrap.__file__ in got.text
    assert "textwrap.wrap('a', 0)" in got.text


def test_frames_of_two_cells_are_both_told():
    inner = define("def g():\n    return 1 / 0", OTHER)
    outer = define("def f():\n    return g()", g=inner["g"])
    got = tracebacks.tell(raised(outer["f"]), LABELS)
    assert got.place == "Cell In[5], line 2"
    assert "return g()" in got.text
    assert "return 1 / 0" in got.text


def test_of_an_error_outside_the_notebook_only_our_callers_are_cut():
    table = ModuleMap((), {}, body=("elsewhere", 1, "wrap('a', 0)"))
    got = tracebacks.tell(raised(loader.run_body, table, {"wrap": textwrap.wrap}), set())
    assert "loader.py" not in got.text
    assert 'File "elsewhere", line 1' in got.text
    assert textwrap.__file__ in got.text
    assert got.place == ""


def test_an_error_without_a_traceback_is_told_all_the_same():
    got = tracebacks.tell(ValueError("bare"), LABELS)
    assert (got.text, got.place) == ("ValueError: bare", "")


# ---------------------------------------------------------------- chains and groups


def test_the_cause_of_an_error_is_told_before_it():
    got = told(
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


def test_the_error_that_was_being_handled_is_told_before():
    got = told("def f():\n    try: {}['key']\n    except KeyError: 1 / 0")
    first, second = got.text.split("\n\nDuring handling of the above exception")
    assert first.endswith("KeyError: 'key'")
    assert second.endswith("ZeroDivisionError: division by zero")


def test_a_suppressed_context_is_not_told():
    got = told(
        "def f():\n    try: {}['key']\n    except KeyError: raise ValueError('no key') from None"
    )
    assert "KeyError: 'key'" not in got.text


def test_each_error_of_a_group_is_told_with_its_line():
    got = told(
        """
        def part(n):
            raise ValueError(f'part {n}')
        def f():
            found = []
            for n in (1, 2):
                try:
                    part(n)
                except ValueError as error:
                    found.append(error)
            raise ExceptionGroup('parts', found)
        """
    )
    assert got.kind == "ExceptionGroup"
    assert got.message == "parts (2 sub-exceptions)"
    assert got.place == "Cell In[3], line 10"
    for said in ("ValueError: part 1", "ValueError: part 2"):
        assert said in got.text
    assert got.text.count('"Cell In[3]", line 2, in part') == 2


def test_notes_are_told():
    got = told("def f():\n    e = ValueError('v')\n    e.add_note('mind the gap')\n    raise e")
    assert got.text.endswith("ValueError: v\nmind the gap")


# ---------------------------------------------------------------- kinds


def test_a_class_of_a_library_is_named_with_its_module():
    assert told("import json\ndef f():\n    json.loads('{')").kind == "json.decoder.JSONDecodeError"


def test_a_class_of_the_notebook_is_named_alone():
    got = told(
        "class Odd(Exception): pass\ndef f():\n    raise Odd('x')",
        __name__="__main__",
    )
    assert got.kind == "Odd"
    assert got.text.endswith("\nOdd: x")


def test_an_error_of_ours_is_told_without_a_stack_of_ours():
    got = told(
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


def test_an_error_whose_str_fails_is_told():
    got = told("class Odd(Exception):\n    def __str__(self): 1 / 0\ndef f():\n    raise Odd()")
    assert got.message == "<its str() raised ZeroDivisionError>"
    assert got.place == "Cell In[3], line 4"
    assert "raise Odd()" in got.text


def test_a_syntax_error_in_code_that_a_cell_runs_shows_where_it_is():
    got = told("def f():\n    compile('x = = 1', 'given.py', 'exec')")
    assert got.kind == "SyntaxError"
    assert got.place == "Cell In[3], line 2"
    assert 'File "given.py", line 1\n    x = = 1\n        ^' in got.text


def test_leaving_the_interpreter_is_told_like_an_error():
    assert told("import sys\ndef f():\n    sys.exit(3)").kind == "SystemExit"


# ---------------------------------------------------------------- depth


def test_of_an_endless_recursion_only_the_last_frames_are_told():
    got = told("def f():\n    return f()")
    assert got.kind == "RecursionError"
    assert got.place == "Cell In[3], line 2"
    assert got.text.count("\n") < 20


def test_of_a_deep_stack_with_different_lines_only_the_innermost_frames_are_told():
    lines = [f"def f{n}(): f{n + 1}()" for n in range(2 * tracebacks.DEPTH)]
    got = told("\n".join([*lines, f"def f{len(lines)}(): 1 / 0", "f = f0"]))
    assert got.text.count("  File ") == tracebacks.DEPTH
    assert got.place == f"Cell In[3], line {len(lines) + 1}"


# ---------------------------------------------------------------- alike or not

TWO_PLACES = "def f():\n    if {one}: raise {error}('{word}')\n    raise {error}('{word}')"


def where(error="ValueError", word="w", one=True):
    return told(TWO_PLACES.format(error=error, word=word, one=one)).where


def test_failures_at_the_same_line_are_alike_whatever_their_words():
    assert where(word="on 1") == where(word="on 2")


def test_failures_at_two_lines_are_not_alike():
    assert where(one=True) != where(one=False)


def test_failures_of_two_kinds_at_one_line_are_not_alike():
    assert where("ValueError") != where("TypeError")


def test_failures_that_came_there_by_two_ways_are_not_alike():
    source = "def g(): 1 / 0\ndef f():\n    if {}: g()\n    g()"
    assert told(source.format(True)).where != told(source.format(False)).where


# ---------------------------------------------------------------- where a thread is


@pytest.fixture
def blocked():
    """A thread that waits in a function of a cell; gives its id."""
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


def test_a_thread_is_located_at_its_innermost_line_of_the_notebook(blocked):
    place, _ = tracebacks.locate(blocked.ident, LABELS)
    assert place == "Cell In[3], line 4"


def test_the_stack_of_a_thread_begins_in_the_notebook(blocked):
    _, stack = tracebacks.locate(blocked.ident, LABELS)
    assert stack.startswith('  File "Cell In[3]", line 2, in outer\n    wait()\n')
    assert "_bootstrap" not in stack


def test_the_innermost_line_of_a_thread_is_the_one_that_it_is_located_at(blocked):
    assert tracebacks.innermost(blocked.ident, LABELS) == "Cell In[3], line 4"


def test_a_thread_outside_the_notebook_has_no_innermost_line(blocked):
    assert tracebacks.innermost(blocked.ident, set()) == ""


def test_a_thread_that_has_ended_has_no_innermost_line():
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    assert tracebacks.innermost(thread.ident, LABELS) == ""


def test_a_thread_outside_the_notebook_has_a_stack_and_no_place(blocked):
    place, stack = tracebacks.locate(blocked.ident, set())
    assert place == ""
    assert "_bootstrap" in stack


def test_a_thread_that_has_ended_is_said_to_have():
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    assert tracebacks.locate(thread.ident, LABELS) == ("", f"thread {thread.ident} has ended")

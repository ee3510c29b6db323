"""Cell text: parsing its statements, and finding the source of live code."""

import linecache

import pytest

from xla_nb.errors import ProgramError
from xla_nb.program.cell_text import Cell, Cells, parse, span

FILE = "/tmp/ipykernel_test/live.py"


def live(source: str, filename: str = FILE):
    names_: dict[str, object] = {}
    exec(compile(source, filename, "exec", dont_inherit=True), names_)
    return names_["f"].__code__  # type: ignore[attr-defined]


def test_code_is_found_in_the_newest_cell_by_file_name_or_linecache_text(monkeypatch):
    source = "def f(): return 1\n"
    cells = Cells([Cell("old", source, FILE), Cell("new", source, FILE), Cell("x", source, "x")])
    found = cells.holding(live(source))
    assert found is not None and found.cell.label == "new"
    monkeypatch.setitem(linecache.cache, FILE, (len(source), None, [source], FILE))
    found = Cells([Cell("one", source)]).holding(live(source))
    assert found is not None and found.cell.label == "one"
    assert Cells([]).holding(live(source)) is None


def test_code_belongs_to_the_statement_at_its_line():
    text = (
        "a = 1\n@str\n@str\ndef f():\n    return lambda: 2\n\nclass A:\n    def g(self): return 1"
    )
    for line, first in ((2, 2), (5, 2), (8, 7)):
        code = compile("\n" * (line - 1) + "lambda: 0", FILE, "eval").co_consts[0]
        found = Cells([Cell("one", text, FILE)]).holding(code)
        assert found is not None and span(found.node)[0] == first
    code = compile("\n" * 8 + "lambda: 0", FILE, "eval").co_consts[0]
    assert Cells([Cell("one", text, FILE)]).holding(code) is None


def test_code_run_by_a_magic_gets_the_line_numbers_of_its_cell():
    """`%%time` executes all code under one file name."""
    first = Cell("first", "#\n\nclass A:\n  def f(): return 1", "<timed exec>", above=1)
    second = Cell("second", "#\ndef f(): return 2\ng = [lambda: 3]", "<timed exec>", above=1)
    cells = Cells([first, second])
    found = cells.labelled(live("\nclass A:\n  def f(): return 1\nf = A.f", "<timed exec>"))
    assert found is not None and (found.co_filename, found.co_firstlineno) == ("first", 4)
    found = cells.labelled(live("def f(): return 2", "<timed exec>"))
    assert found is not None and (found.co_filename, found.co_firstlineno) == ("second", 2)
    assert cells.labelled(live("def f(): return 3", "<timed exec>")) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("await x", "c, line 1: 'await' outside function"),
        ("x = 1\ny = '\0'\n", "c, line 2: a NUL character. Correct the line."),
        ("x = 1\n# \ud800\n", "c, line 2: half a character. Correct the line."),
        ("x = 1\ny = " + "-" * 20_000 + "1\n", "c: a statement is nested too deeply for Python."),
        ("x = 1\ny = 1" + " + 1" * 50_000, "c: a statement is nested too deeply for Python."),
        ("x = 1\ny = " + "(" * 300 + ")" * 300, "c, line 2: too many nested parentheses."),
    ],
    ids=["await", "NUL", "surrogate", "minus signs", "sum", "parentheses"],
)
def test_text_that_does_not_compile_is_refused_with_its_line(text, said):
    with pytest.raises(ProgramError) as refusal:
        parse(Cell("c", text))
    assert str(refusal.value).startswith(said)


def test_only_text_near_the_error_is_shown_of_a_long_line():
    with pytest.raises(ProgramError) as refusal:
        parse(Cell("c", "x = [" + "1, " * 5000 + "! 2]"))
    *_, near, mark = str(refusal.value).splitlines()
    assert near[mark.index("^")] == "!"
    assert len(near) < 130

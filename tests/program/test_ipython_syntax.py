"""IPython's syntax in code for ranks: supported, skipped or refused."""

import ast

import pytest

from xla_nb.errors import ProgramError
from xla_nb.pickling.code_facts import in_texts
from xla_nb.program.ipython_syntax import check, find


def line_magic(name: str, line: str = "") -> str:
    return f"get_ipython().run_line_magic({name!r}, {line!r})"


def test_find_lists_escapes_with_line_and_name():
    manager = pytest.importorskip("IPython.core.inputtransformer2").TransformerManager()
    source = manager.transform_cell(
        "!ls\ndef f():\n    %env A=1\n    x = !ls\nget_ipython().run_cell_magic('bash', '', 'ls')\n"
        "other().system('ls')\nget_ipython().kernel\n"
    )
    escapes = [(line, sign + name) for line, sign, name in find(ast.parse(source))]
    assert escapes == [(1, "!"), (3, "%env"), (4, "!"), (5, "%%bash")]


def test_notebook_magics_are_skipped_with_a_note_and_supported_ones_without():
    for name in ("load_ext", "autoreload", "config"):
        (note,) = check(ast.parse("\n" + line_magic(name)), "Cell In[1]")
        assert note == f"Cell In[1], line 2: %{name} is skipped on ranks"
    for name in ("env", "set_env", "cd", "pwd", "matplotlib"):
        assert check(ast.parse(line_magic(name)), "c") == ()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (line_magic("pip", "install x"), r"c, line 1: %pip .*separate cell, before the launch"),
        (line_magic("time", "x"), r"c, line 1: %time does not work on ranks; write %%time above"),
        (
            line_magic("timeit", "x"),
            r"%timeit does not work on ranks; use time\.perf_counter\(\)\. Ranks support !command",
        ),
        (line_magic("unknown"), r"%unknown does not work on ranks; move it to a separate cell"),
        ("get_ipython().run_cell_magic('bash', '', '')", r"c, line 1: %%bash"),
        ("get_ipython().run_cell_magic('time', '', '')", r"c, line 1: %%time"),
    ],
)
def test_unsupported_magics_are_refused_by_name(source, message):
    with pytest.raises(ProgramError, match=message):
        check(ast.parse(source), "c")


@pytest.mark.parametrize(
    ("call", "names"),
    [
        ("system('echo {first + second.part} {size:>8}')", ["first", "second", "part", "size"]),
        ("system('echo $$ $1 costs')", []),
        ("system('awk \\'{print $1}\\' $file')", ["print", "file"]),
        ("system('echo {')", []),
        ("system('echo {}')", []),
        ("system('echo $größe')", ["größe"]),
        ("system('ls --all $folder {names[0]}')", ["folder", "names"]),
        ("run_line_magic('cd', '$folder')", ["folder"]),
    ],
)
def test_names_in_commands_of_cells_and_functions_are_found(call, names):
    code = compile(f"get_ipython().{call}\ndef f():\n    get_ipython().{call}", "", "exec")
    function = next(one for one in code.co_consts if isinstance(one, type(code)))
    for each in code, function:
        assert [n for n in in_texts(each) if n not in ("run_line_magic", "system", "f")] == names

"""The names in the text of IPython's syntax."""

import pytest

from xla_nb.protocol import escapes


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("cp {source} $target", ["source", "target"]),
        ("echo {first + second.part} {size:>8}", ["first", "second", "size"]),
        ("echo $$ $1 costs", []),
        ("awk '{print $1}' $file", []),
        ("echo {", []),
        ("echo {}", []),
        ("echo $größe", ["größe"]),
    ],
)
def test_names_that_a_command_is_given(text, names):
    assert list(escapes.in_command(text)) == names


def test_names_in_the_commands_of_a_function():

    source = compile("def f():\n    get_ipython().system('ls $folder')", "", "exec").co_consts[0]
    assert escapes.in_code(source) == ("folder",)


def test_the_names_that_are_timed():
    text = "def f():\n    get_ipython().run_line_magic('time', 'train(model)')"
    code = compile(text, "", "exec").co_consts[0]
    assert {"train", "model"} <= set(escapes.in_code(code))

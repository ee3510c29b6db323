"""Cells read from IPython's history, with a shell that counts requests for file names."""

from types import SimpleNamespace

import pytest

from xla_nb.notebook import Executed

TIMED = "get_ipython().run_cell_magic('time', '', 'x = 1\\n')"


@pytest.fixture
def shell():
    """A shell that has executed `a = 1` and a cell below `%%time`; `named` lists the numbers of
    cells whose file names were requested, in order."""
    named = []

    def get_code_name(raw, source, number):
        named.append(number)
        return f"file-{number}-{hash(raw)}"

    return SimpleNamespace(
        history_manager=SimpleNamespace(
            input_hist_raw=["", "a = 1", "%%time\nx = 1\n"], input_hist_parsed=["", "a = 1", TIMED]
        ),
        compile=SimpleNamespace(get_code_name=get_code_name),
        transform_cell=lambda text: text,
        named=named,
    )


def test_each_cell_is_created_only_once(shell):
    executed = Executed(shell)
    first = executed.cells({})
    assert [cell.source for cell in first] == ["a = 1", "#\nx = 1\n"]
    named = len(shell.named)
    assert executed.cells({}) == first
    assert len(shell.named) == named


def test_a_cell_whose_number_is_reused_is_replaced(shell):
    executed = Executed(shell)
    executed.cells({})
    shell.history_manager.input_hist_raw[1] = shell.history_manager.input_hist_parsed[1] = "b = 2"
    assert [cell.source for cell in executed.cells({})] == ["b = 2", "#\nx = 1\n"]

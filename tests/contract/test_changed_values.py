"""Changes that ranks make to the notebook's lists and dicts are lost; a note reports them."""

import pytest

HISTORY = "Ranks changed `{}`; the notebook's copy is unchanged. Return it from the function."
TRAIN = "def train(rank): {0}['loss'].append(0.5)"


def note(shown):
    """The notes in a cell's snapshot."""
    lines = shown.data.get("text/plain", "").splitlines()
    return [line.removeprefix("note: ") for line in lines if line.startswith("note: ")]


def test_dict_changed_by_a_launched_function_is_reported(notebook):
    notebook.ok("lost_a = {'loss': []}")
    shown = notebook.ok("%%xla_spawn -n 2 -o lost_run\n" + TRAIN.format("lost_a"))
    assert note(shown) == [HISTORY.format("lost_a")]
    assert HISTORY.format("lost_a").replace("'", "&#x27;") in shown.page
    again = notebook.ok("%%xla_spawn -n 2 --view text\n" + TRAIN.format("lost_a"))
    assert again.stderr.splitlines() == [HISTORY.format("lost_a")]
    assert notebook.value("lost_a") == "{'loss': []}"
    notebook.ok("import xla_nb\nlost_again = xla_nb.open_run(lost_run.name)")
    assert notebook.value("[one.text for one in lost_again.state.notices]") == repr(
        [HISTORY.format("lost_a")]
    )


def test_changed_arguments_and_globals_are_reported_together(notebook):
    notebook.ok("lost_b, lost_c = [None] * 4, {}")
    shown = notebook.ok(
        "import torch_xla.distributed.xla_multiprocessing as xmp\n"
        "def lost_fn(rank, given): given[rank] = lost_c[rank] = rank\n"
        "xmp.spawn(lost_fn, args=(lost_b,), nprocs=2)"
    )
    told = "Ranks changed `lost_b` and `lost_c`; the notebook's copies are unchanged. "
    assert told + "Return them from the function." in str(
        [message["content"].get("data") for message in shown.messages]
    )


def test_cell_of_statements_reports_changed_but_not_rebound_values(notebook):
    notebook.ok("lost_d, lost_e = [0] * 4, [1, 2]")
    shown = notebook.ok("%%xla_spawn -n 2\nlost_d[rank] = 7\nlost_e = lost_e[rank:]")
    told = (
        "Ranks changed `lost_d`; the notebook's copy is unchanged. End the cell with it to get it."
    )
    assert note(shown) == [told]


@pytest.mark.parametrize(
    "body",
    [
        "lost_f.append(rank); return lost_f",
        "lost_f.append(rank); return 0.5, lost_f",
        "return len(lost_f)",
        "lost_f.append(rank); lost_f.pop()",
        "mine = lost_f + [rank]",
    ],
)
def test_nothing_is_reported_if_nothing_is_lost(notebook, body):
    notebook.ok("lost_f = [0]")
    assert note(notebook.ok(f"%%xla_spawn -n 2\ndef f(rank): {body}")) == []


def test_nothing_is_reported_for_failed_runs_and_live_ranks(notebook):
    notebook.ok("lost_g = [0]")
    cell = "def f(rank):\n    lost_g.append(rank)\n    if rank: raise ValueError('boom')"
    assert "Ranks changed" not in str(notebook.run(f"%%xla_spawn -n 2\n{cell}").messages)
    shown = notebook.ok("%%xla\nlost_g.append(1)")
    notebook.ok("%xla_shutdown")
    assert "Ranks changed" not in str(shown.messages)

"""Displays of ranks next to a view: in a real kernel, in a terminal, and in reopened runs."""

import subprocess
import sys

import pytest

from tests.support.installed import need
from tests.support.run_double import Run
from xla_nb.record.displays import Display, Journal, Shown, encode
from xla_nb.views.rank_outputs import Beside, Lines, Outputs

SHOWN = """\
import matplotlib.pyplot as plt
import pandas as pd
from IPython.display import Markdown

def f(rank):
    plt.plot([1, 2, rank])
    plt.show()
    display(Markdown(f"**of {rank}**"))
    display(pd.DataFrame({"column": [1, 2]}))
    plt.plot([rank, 2])
    return pd.DataFrame({"returned": [rank]})
"""
TITLES = ["<Figure size 640x480 with 1 Axes>", "<IPython.core.display.Markdown object>"]


def outputs(shown):
    """The final displays of ranks in a front end, without the run's own output."""
    made, by_id = [], {}
    for message in shown.messages:
        content = message["content"]
        id = content.get("transient", {}).get("display_id")
        if message["msg_type"] == "display_data":
            by_id[id] = len(made)
            made.append(content["data"])
        elif message["msg_type"] == "update_display_data":
            made[by_id[id]] = content["data"]
    own = "application/vnd.xla-nb.run+json"  # the run's own output
    return [one for one in made if own not in one and one.get("text/plain")]


def told(shown):
    """The text of each display."""
    return [one["text/plain"] for one in outputs(shown)]


# ---------------------------------------------------------------- in a notebook


@pytest.mark.parametrize("view", ["text", "panel"])
def test_displays_of_ranks_appear_below_the_view(view, notebook):
    shown = notebook.ok(f"%%xla_spawn -n 2 --view {view}\n{SHOWN}")
    each = outputs(shown)
    table = "   column\n0       1\n1       2"
    for rank, own in (0, each[:7]), (1, each[7:]):
        assert [one["text/plain"] for one in own] == [
            *(f"[{rank}]", *TITLES, table, TITLES[0]),
            *(f"[{rank}] returned", f"   returned\n0         {rank}"),
        ]
        assert own[1]["image/png"] != own[4]["image/png"]
        assert own[2]["text/markdown"] == f"**of {rank}**"
        assert "<th>column</th>" in own[3]["text/html"]


def test_displays_appear_during_the_run(notebook, tmp_path):
    go = tmp_path / "go"
    cell = f"""%%xla_spawn -n 1
import os, time
def f(rank):
    display("early")
    while not os.path.exists({str(go)!r}):
        time.sleep(0.02)
    """

    def during(shown):
        if "'early'" in told(shown):
            go.touch()

    assert notebook.run(cell, during=during).status == "ok"


def test_equal_displays_of_all_ranks_are_shown_once(notebook):
    shown = notebook.ok("%%xla_spawn -n 4\ndef f(rank): display('same')")
    assert told(shown) == ["[0–3]", "'same'"]


def test_run_without_a_view_shows_and_stores_displays(notebook):
    shown = notebook.ok("%%xla_spawn -n 2 --view none -o shown_run\ndef f(rank): display(rank)")
    assert told(shown) == ["[0]", "0", "[1]", "1"]
    assert notebook.value("shown_run.displays") == "{0: [<Display '0'>], 1: [<Display '1'>]}"
    again = notebook.ok("display(shown_run.displays[1][0])")
    assert again.data == {"text/plain": "1"}


def test_displaying_a_run_includes_displays_of_its_ranks(notebook):
    notebook.ok("%%xla_spawn -n 2 --view none -o pictured\ndef f(rank): display(f'of {rank}')")
    shown = notebook.ok("pictured")
    assert "2 ranks finished" in shown.page
    assert told(shown) == ["[0]", "'of 0'", "[1]", "'of 1'"]


def test_background_run_counts_displays_in_its_own_cell(notebook, tmp_path):
    gate = repr(str(tmp_path / "gate"))
    cell = (
        "%%xla_spawn -n 2 --bg --view panel -o behind\nimport os, time\ndef f(rank):\n"
        f"    while not os.path.exists({gate}): time.sleep(0.01)\n    display(f'of {{rank}}')"
    )
    first = notebook.ok(cell)
    shown = notebook.ok(f"open({gate}, 'w').close()\nbehind.wait();")
    ids = [m["content"]["transient"]["display_id"] for m in first.messages if is_display(m)]
    updates = {
        m["content"]["transient"]["display_id"]: m["content"]["data"]["text/plain"]
        for m in [*first.messages, *shown.messages]
        if m["msg_type"] == "update_display_data"
    }
    assert updates[ids[-1]] == "2 displays of ranks: show the run, or see run.displays"
    assert not [one for one in map(is_display, shown.messages) if one]


def is_display(message):
    return message["msg_type"] == "display_data"


def test_xmp_spawn_shows_displays_too(notebook):
    cell = """import torch_xla.distributed.xla_multiprocessing as xmp
def f(rank):
    from IPython.display import HTML, display
    display(HTML(f"<i>html {rank}</i>"))
xmp.spawn(f, nprocs=2)
"""
    assert "<i>html 0</i>" in notebook.ok(cell).page


@pytest.mark.parametrize(
    "runtime",
    # The kernel keeps a fork server for the imports of each runtime.
    ["spmd", pytest.param("torchax", marks=[pytest.mark.slow, pytest.mark.leaves("processes")])],
)
def test_ranks_of_every_runtime_can_display(runtime, notebook):
    if runtime == "torchax":
        need("torchax")
    cell = f"%%xla_spawn -n 2 --runtime {runtime}\ndef f(rank): display(f'from {{rank}}')"
    assert "'from 0'" in told(notebook.ok(cell, timeout=300))


def test_open_figures_are_shown_when_the_function_raises(notebook):
    cell = """%%xla_spawn -n 1 --keep-going
import matplotlib.pyplot as plt
def f(rank):
    plt.plot([1])
    raise ValueError
"""
    assert TITLES[0] in told(notebook.ok(cell))


def test_displays_of_killed_rank_are_kept(notebook):
    cell = """%%xla_spawn -n 2 --keep-going -o killed_run --grace 1
import os
def f(rank):
    display("before")
    if rank:
        os.kill(os.getpid(), 9)
"""
    notebook.ok(cell)
    assert notebook.value("[d.text for d in killed_run.displays[1]]") == "[\"'before'\"]"


def test_clear_output_and_updates_reach_the_page(notebook):
    cell = """%%xla_spawn -n 1
from IPython.display import clear_output, display
def f(rank):
    display("gone")
    clear_output(wait=True)
    handle = display("old", display_id=True)
    handle.update("new")
"""
    assert told(notebook.ok(cell)) == ["[0]", "'new'"]


def test_update_of_display_from_earlier_cell_appears_in_current_cell(notebook):
    try:
        notebook.ok("%%xla\nhandle = display('first', display_id='of a cell')")
        shown = notebook.ok("%%xla\nhandle.update('second')")
    finally:
        notebook.ok("%xla_shutdown")
    assert told(shown) == ["[0–3]", "'second'"]


def test_unclosed_html_of_one_rank_does_not_hide_other_ranks(notebook):
    shown = notebook.ok(
        "%%xla_spawn -n 2\nfrom IPython.display import HTML\n"
        "def f(rank):\n    display(HTML('<b>whole</b>' if rank else '<!-- open'))"
    )
    own = [one["text/html"] for one in outputs(shown)]
    assert "<!-- open" in own
    assert "<b>whole</b>" in own


def test_reopened_run_shows_displays(notebook):
    notebook.ok("%%xla_spawn -n 2 -o to_reopen\ndef f(rank): display(f'kept {rank}')")
    shown = notebook.ok("xla_nb.open_run(to_reopen.name)")
    assert "2 ranks finished" in shown.page
    assert "[0]\n'kept 0'\n[1]\n'kept 1'" in shown.text  # other runs may end in the background


# ---------------------------------------------------------------- elsewhere


class Recording:
    """A view that draws nothing."""

    def __init__(self):
        self.finished = False

    def draw(self):
        return 0.05

    def finish(self):
        self.finished = True


def journal(run, rank):
    return Journal(run.record.displays(rank))


def show(text):
    return encode("show", data={"text/plain": text}, metadata={}, id=None, result=False)


def test_displays_in_a_script_are_lines_of_text(tmp_path, capsys):
    run, view = Run(tmp_path), Recording()
    beside = Beside(view, run)
    beside.draw()
    journal(run, 1).add(show("a\nb"))
    journal(run, 0).add(show("<Figure>"))
    beside._due = 0.0  # check again at once
    assert beside.draw() <= 0.05
    journal(run, 1).add(show("c"))
    beside.finish()
    assert capsys.readouterr().out == "[0] <Figure>\n[1] a\n[1] b\n[1] c\n"
    assert view.finished


def test_long_text_is_truncated_in_a_script(tmp_path, capsys):
    run = Run(tmp_path)
    journal(run, 0).add(show("\n".join("x" * 100)))
    beside = Beside(Recording(), run)
    beside.finish()
    assert capsys.readouterr().out.splitlines()[-1] == "… 40 more lines"


@pytest.mark.slow
def test_script_prints_displays_of_its_ranks(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import xla_nb\nfrom IPython.display import display\n"
        "def f(rank): display(f'rank {rank}')\n"
        "if __name__ == '__main__': xla_nb.spawn(f, n=1)\n"
    )
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=100, check=True
    )
    assert "[0] 'rank 0'\n" in done.stdout


def test_output_is_sent_again_only_if_changed(monkeypatch):
    sent = []

    class Handle:
        def display(self, data, **_):
            sent.append(("new", data["text/plain"]))

        def update(self, data, **_):
            sent.append(("update", data["text/plain"]))

    monkeypatch.setattr("IPython.display.DisplayHandle", Handle)
    outputs = Outputs()
    markdown = Display({"text/markdown": "m", "text/plain": "M"})
    text = Display({"text/plain": "T"})
    outputs.show({0: Shown([text, markdown])})
    assert sent == [("new", "[0]"), ("new", "T"), ("new", "M")]
    sent.clear()
    outputs.show({0: Shown([text, markdown])})
    assert sent == []
    outputs.show({0: Shown([text])})
    assert sent == [("update", "")]


def test_lines_are_printed_once(capsys):
    lines, shown = Lines(), Shown([Display({"text/plain": "one"})])
    for _ in range(2):
        lines.show({0: shown})
    assert capsys.readouterr().out == "[0] one\n"

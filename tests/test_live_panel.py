"""Display of live ranks in a notebook whose front end has no panel, and in a terminal."""

import re

import pytest


class Shown:
    """The latest content of all displays, in order of their first appearance."""

    def __init__(self):
        self.ids, self.data = [], {}

    def take(self, shown):
        """Record displays and updates of a cell."""
        for message in shown.messages:
            if message["msg_type"] in ("display_data", "update_display_data"):
                content = message["content"]
                name = content.get("transient", {}).get("display_id")
                if message["msg_type"] == "display_data":
                    self.ids.append(name)
                self.data[name] = content["data"]
        return shown

    def __getitem__(self, number):
        return self.data[self.ids[number]]["text/plain"]

    def html(self, number):
        return self.data[self.ids[number]]["text/html"]


def row(html, cell):
    """The text of a cell's row in the list of cells."""
    row, *_ = html[html.index(f">Cell In[{cell}]<") + 1 :].partition("</tr>")
    return re.sub("<.*?>", "", row)


@pytest.fixture
def shown():
    return Shown()


@pytest.fixture
def started(kernel, shown):
    """Two live ranks that were just started, as the group `still`."""
    yield shown.take(kernel.ok("%xla_start -n 2 --name still"))
    kernel.run("%xla_shutdown still")


def test_the_display_below_xla_start_follows_cells_of_the_ranks(kernel, shown, started):
    assert "Started ranks 0, 1." in started.stdout
    assert shown[0].startswith("○ 2 live ranks, idle for ")
    shown.take(kernel.ok("%%xla --group still --view none\n1 + 1"))
    assert shown[0].startswith("○ 2 live ranks, idle for ")
    assert "group still, 1 cell" in shown[0]
    cell = shown.take(kernel.run("%%xla 1 --group still --view none\n1 / 0"))
    label = f"Cell In[{cell.number}]"
    assert "2 cells, 1 failed or stopped" in shown[0]
    told = row(shown.html(0), cell.number)
    assert told.startswith(f"{label}1✗ Rank 1 failed at {label}, line 2")
    shown.take(kernel.ok("%xla_shutdown still"))
    assert shown[0].startswith("✓ 2 live ranks ended by %xla_shutdown · alive for ")
    assert row(shown.html(0), cell.number) == told


def test_showing_ranks_again_moves_their_display(kernel, shown, started):
    again = shown.take(kernel.ok("%xla_ranks still"))
    assert shown[0] == f"Moved to Cell In[{again.number}]."
    assert shown[1].startswith("○ 2 live ranks, idle for ")
    shown.take(kernel.ok("%%xla --group still --view none\n1"))
    assert "1 cell" in shown[1]
    assert shown[0].startswith("Moved to ")


def test_restarted_ranks_have_their_own_display(kernel, shown, started):
    shown.take(kernel.ok("%xla_restart still"))
    assert "2 live ranks ended by %xla_restart" in shown[0]
    assert shown[1].startswith("○ 2 live ranks, idle for ")


def test_ranks_started_implicitly_by_a_cell_show_only_the_cell(kernel, shown):
    shown.take(kernel.ok("%%xla\nNone"))
    assert len(shown.ids) == 1
    assert "ranks finished" in shown[0]
    kernel.ok("%xla_shutdown")


def test_a_cell_reports_once_which_ranks_it_started(kernel):
    kernel.ok("%xla_config n=2")
    try:
        assert "Started ranks 0, 1." in kernel.ok("%%xla\nrank").stdout
        assert "Started" not in kernel.ok("%%xla\nrank").stdout
    finally:
        kernel.ok("%xla_shutdown\n%xla_config n=None")


def test_the_display_of_ranks_reports_that_their_idle_limit_ended_them(kernel, shown):
    kernel.ok("%xla_start -n 1 --name short --idle 0.3")
    kernel.ok("xla_nb.live.of('short').run.join_end(60)")
    shown.take(kernel.ok("%xla_ranks short"))
    told = "1 live rank ended after 0.3 s without a cell (--idle)"
    assert told in shown[0]
    assert (
        f"{told}. Start new ones: %xla_restart short." in kernel.run("%%xla --group short\n1").error
    )
    kernel.ok("%xla_shutdown short")


def test_ended_ranks_are_no_longer_followed(kernel, shown):
    """Whether they ended by themselves or are shown again later."""
    kernel.ok("%xla_start -n 1 --name gone --idle 0.2s\ngone = xla_nb.ranks('gone')")
    kernel.ok("__import__('xla_nb.live').live.of('gone').run.join_end()")
    shown.take(kernel.ok("gone"))
    assert "ended after 0.2 s without a cell" in shown[0]
    kernel.ok("%xla_start -n 1 --name gone\n%xla_shutdown gone")
    shown.take(kernel.ok("gone"))
    assert "ended after 0.2 s without a cell" in shown[1]
    assert kernel.value("len(__import__('xla_nb.live').live._shown())") == "0"


def test_captured_ranks_are_shown_as_text(kernel, started):
    kernel.ok("%%capture caught_\n%xla_ranks still")
    assert "2 live ranks, idle" in kernel.value("caught_.stdout")


RUNS = """
%%xla --group cut --bg --view none -o run_
import time
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("ends", "title", "how"),
    [
        ("%xla_shutdown cut", "■ 2 live ranks ended by %xla_shutdown during ", "■ Stopped"),
        ("import os; os.kill(job_, 9)", "✗ Ranks 0, 1 were lost: ", "✗ ended with the ranks"),
    ],
)
def test_a_cell_that_loses_its_ranks_while_running_shows_how_it_ended(
    kernel, shown, ends, title, how
):
    shown.take(kernel.ok("%xla_start -n 2 --name cut"))
    kernel.ok("lost_ = xla_nb.ranks('cut')._group.run")
    kernel.ok("import psutil\njob_ = psutil.Process(lost_.state.ranks[0].pid).ppid()")
    cell = kernel.ok(RUNS.strip())
    kernel.ok("while len(run_.state.ranks) < 2: pass")
    kernel.run(ends)
    kernel.ok("run_.join_end(); lost_.join_end()")
    kernel.ok("opened_ = xla_nb.open_run(lost_.name)._repr_mimebundle_()")
    opened = kernel.ok("print(opened_['text/plain'])").stdout
    assert opened.startswith(title)
    assert "1 cell, 1 failed or stopped" in opened
    cells = [kernel.ok("print(opened_['text/html'])").stdout]
    if "kill" in ends:
        shown.take(kernel.ok("%xla_ranks cut"))
        cells.append(shown.html(1))
    for html in cells:
        assert row(html, cell.number).startswith(f"Cell In[{cell.number}]0, 1{how}")
    kernel.run("%xla_shutdown cut")

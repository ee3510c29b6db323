"""Where live ranks are shown in a notebook whose front end has no panel, and in a terminal."""

import re

import pytest


class Shown:
    """The displays of all cells, by their number of appearance, as they are at last."""

    def __init__(self):
        self.ids, self.data = [], {}

    def take(self, shown):
        """Follow what a cell displays, and updates."""
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
    """What the list of cells tells of one, in words."""
    row, *_ = html[html.index(f">Cell In[{cell}]<") + 1 :].partition("</tr>")
    return re.sub("<.*?>", "", row)


@pytest.fixture
def shown():
    return Shown()


@pytest.fixture
def started(kernel, shown):
    """Two live ranks that have just been started, as the group `still`."""
    yield shown.take(kernel.ok("%xla_start -n 2 --name still"))
    kernel.run("%xla_shutdown still")


def test_a_picture_follows_the_cells_of_ranks_that_were_started(kernel, shown, started):
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


def test_ranks_that_are_shown_again_are_followed_there(kernel, shown, started):
    again = shown.take(kernel.ok("%xla_ranks still"))
    assert shown[0] == f"Moved to Cell In[{again.number}]."
    assert shown[1].startswith("○ 2 live ranks, idle for ")
    shown.take(kernel.ok("%%xla --group still --view none\n1"))
    assert "1 cell" in shown[1]
    assert shown[0].startswith("Moved to ")


def test_restarted_ranks_have_a_picture_of_their_own(kernel, shown, started):
    shown.take(kernel.ok("%xla_restart still"))
    assert "2 live ranks ended by %xla_restart" in shown[0]
    assert shown[1].startswith("○ 2 live ranks, idle for ")


def test_ranks_that_a_cell_starts_by_itself_show_only_the_cell(kernel, shown):
    shown.take(kernel.ok("%%xla\nNone"))
    assert len(shown.ids) == 1
    assert "ranks finished" in shown[0]
    kernel.ok("%xla_shutdown")


def test_a_cell_says_once_which_ranks_it_has_started(kernel):
    kernel.ok("%xla_config n=2")
    try:
        assert "Started ranks 0, 1." in kernel.ok("%%xla\nrank").stdout
        assert "Started" not in kernel.ok("%%xla\nrank").stdout
    finally:
        kernel.ok("%xla_shutdown\n%xla_config n=None")


def test_ranks_that_were_idle_for_too_long_say_so_where_they_are_shown(kernel, shown):
    kernel.ok("%xla_start -n 1 --name short --idle 0.3")
    kernel.ok("xla_nb.live.of('short').run.join_end(60)")
    shown.take(kernel.ok("%xla_ranks short"))
    told = "1 live rank ended after 0.3 s without a cell (--idle)"
    assert told in shown[0]
    assert (
        f"{told}. Start new ones: %xla_restart short." in kernel.run("%%xla --group short\n1").error
    )
    kernel.ok("%xla_shutdown short")


def test_ranks_that_have_ended_are_not_followed_any_more(kernel, shown):
    """Neither those that ended by themselves nor those that are shown once more."""
    kernel.ok("%xla_start -n 1 --name gone --idle 0.2s\ngone = xla_nb.ranks('gone')")
    kernel.ok("__import__('xla_nb.live').live.of('gone').run.join_end()")
    shown.take(kernel.ok("gone"))
    assert "ended after 0.2 s without a cell" in shown[0]
    kernel.ok("%xla_start -n 1 --name gone\n%xla_shutdown gone")
    shown.take(kernel.ok("gone"))
    assert "ended after 0.2 s without a cell" in shown[1]
    assert kernel.value("len(__import__('xla_nb.live').live._shown())") == "0"


def test_captured_ranks_are_told_in_text(kernel, started):
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
def test_a_cell_whose_ranks_are_lost_while_it_runs_says_how_it_ended(
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

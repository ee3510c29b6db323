"""The panel of live ranks: its page alone, with the test as kernel, and in a real JupyterLab."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.harness import Panel, block, card
from tests.browser.lab import LabNotebook
from tests.support.stopping import halt
from xla_nb.messages.events import ProgramBegan, ProgramEnded
from xla_nb.monitor.snapshot import Diagnosis, Live
from xla_nb.monitor.state import ProgramState
from xla_nb.run.group import DEFAULT
from xla_nb.views.panel import view

ANYWIDGET_WAITS = 2.0  # seconds until a model reports that it failed to load


def live(idle: bool = True, since: float | None = 12.0, **more: Any) -> dict[str, Any]:
    """The diagnosis and state of live ranks that became idle or busy `since` seconds ago."""
    sentence = "4 live ranks, idle" if idle else "Cell In[7] is running on ranks 0–3"
    began = None if since is None else time.time() - since
    own = Live(name=DEFAULT, since=began, running=0 if idle else 1, **{"count": 2, **more})
    return {"diagnosis": Diagnosis(sentence), "live": own}


def ran(
    number: int, outcome: Any = "finished", whom: tuple[int, ...] = (0, 1, 2, 3), **more: Any
) -> ProgramState:
    """A cell of live ranks."""
    at, label = time.time(), f"Cell In[{number + 4}]"
    began = ProgramBegan(at=at, number=number, run=f"run-{number}", label=label, ranks=whom)
    if outcome == "running":
        return ProgramState(number, began)
    told = {"headline": "", "elapsed": 1.5, **more}
    return ProgramState(number, began, ProgramEnded(at=at, number=number, outcome=outcome, **told))


@pytest.fixture
def panel(page: Page) -> Iterator[Panel]:
    """A panel of four idle live ranks."""
    panel = Panel(page)
    panel.begin(*(card(rank, "idle", place="") for rank in range(4)), **live())
    yield panel
    panel.page.evaluate("localStorage.clear()")
    panel.leave()
    assert panel.problems == []


def button(panel: Panel, name: str) -> Any:
    return panel.page.get_by_role("button", name=name, exact=True)


def rows(panel: Panel) -> list[list[str]]:
    """The list of cells, without their start times."""
    drawn = panel.page.locator(".xn-ran tbody tr").all()
    return [row.locator("td").all_inner_texts()[:5] for row in drawn]


# ---------------------------------------------------------------- idle or busy


def test_idle_ranks_show_time_since_last_cell(panel: Panel) -> None:
    expect(panel.page.locator(".xn-headline")).to_have_text("4 live ranks, idle")
    expect(panel.page.locator(".xn-sub")).to_have_text(re.compile(r"^for 1\d s · 2 cells"))
    expect(panel.page.locator(".xn-counts").first).to_contain_text("4 idle")


def test_idle_time_of_all_ranks_is_shown_once(panel: Panel) -> None:
    """Each rank became idle a little before the last one, so rounded times could differ."""
    first = panel.page.locator("[role=option]").first
    panel.tell(*(card(rank, "idle", place="", since=time.time() - 13) for rank in range(4)))
    assert first.locator(".xn-at").inner_text() == ""
    panel.tell(*(card(rank) for rank in range(1, 4)), **live(idle=False))
    expect(first.locator(".xn-at")).to_have_text(re.compile(r"^for 1\d s$"))


def test_running_cell_shows_its_own_time(panel: Panel) -> None:
    running = live(idle=False, since=3.0, cells=(ran(3, "running"),))
    panel.tell(*(card(rank) for rank in range(4)), **running)
    expect(panel.page.locator(".xn-headline")).to_have_text("Cell In[7] is running on ranks 0–3")
    expect(panel.page.locator(".xn-sub")).to_have_text(re.compile(r"^for [3-9] s · "))
    number, label, whom, told, took = rows(panel)[0]
    assert (number, label, whom, took) == ("3", "Cell In[7]", "0–3", "")
    assert "running" in told


def test_kernel_restart_stops_the_time_of_running_cells(panel: Panel) -> None:
    panel.tell(**live(idle=False, since=None, cells=(ran(3, "running"),)))
    panel.page.evaluate("document.querySelector('.xn-panel').xnView.store.freeze()")
    told = re.compile(r"^Kernel restarted; last update \d\d:\d\d:\d\d$")
    expect(panel.page.locator(".xn-headline")).to_have_text(told)
    expect(panel.page.locator(".xn-sub")).not_to_contain_text(re.compile(r"for \d"))


def test_output_between_cells_is_shown_only_if_there_is_any(panel: Panel) -> None:
    output = panel.page.locator(".xn-output")
    expect(output).to_be_hidden()
    panel.tell(lines=[block(1, "a thread goes on")])
    expect(output).to_be_visible()


# ---------------------------------------------------------------- cells


def test_cells_are_listed_newest_first_with_their_outcome(panel: Panel) -> None:
    failed = ran(2, "failed", (1,), headline="Rank 1 failed: boom")
    panel.tell(**live(cells=(failed, ran(1))))
    told = [[number, label, whom, how[1:], took] for number, label, whom, how, took in rows(panel)]
    assert told == [
        ["2", "Cell In[6]", "1", " Rank 1 failed: boom", "1.5 s"],
        ["1", "Cell In[5]", "0–3", " finished", "1.5 s"],
    ]
    panel.tell(**live(cells=(ran(3, "running"), failed, ran(1))))
    assert [row[0] for row in rows(panel)] == ["3", "2", "1"]


def test_cell_with_a_finding_is_marked_and_shows_it(panel: Panel) -> None:
    found = "`w` has differed between ranks since Cell In[6]"
    panel.tell(**live(cells=(ran(2, found=found), ran(1))))
    assert rows(panel)[0][3] == f"! finished; {found.replace('`', '')}"  # formatted as code
    stopped = ran(
        3, "stopped", headline="Stopped", found="3 ranks had been waiting 16 s for rank 2"
    )
    panel.tell(**live(cells=(stopped, ran(1))))
    assert rows(panel)[0][3] == "■ Stopped; 3 ranks had been waiting 16 s for rank 2"


# ---------------------------------------------------------------- the end


def test_shutdown_needs_a_second_click(panel: Panel) -> None:
    panel.page.evaluate("void (answer = ({request}) => give({type: 'ack', request}))")
    button(panel, "Shut down").click()
    expect(panel.page.locator(".xn-say")).to_contain_text("The ranks' variables will be lost.")
    assert panel.sent("stop") == []
    button(panel, "Shut down").click()
    panel.wait_sent("stop")
    expect(button(panel, "Shutting down…")).to_be_disabled()
    assert panel.page.evaluate("interrupts") == 0


def test_shutdown_does_not_interrupt_unresponsive_kernel(panel: Panel) -> None:
    button(panel, "Shut down").click()
    button(panel, "Shut down").click()
    expect(panel.page.locator(".xn-say")).to_contain_text("Run %xla_shutdown to end the ranks.")
    expect(button(panel, "Shut down")).to_be_enabled()
    assert panel.page.evaluate("interrupts") == 0


# ---------------------------------------------------------------- in JupyterLab


def test_panel_of_live_ranks_lists_cells_and_shuts_down_in_jupyterlab(
    notebook: LabNotebook,
) -> None:
    started = notebook.execute("%xla_start -n 2")
    panel = notebook.output(started).locator(".xn-panel")
    expect(panel.locator(".xn-headline")).to_have_text("2 live ranks, idle")
    notebook.execute("%%xla\nkept = rank")
    failing = notebook.execute("%%xla 1\n1 / 0")
    rows = panel.locator(".xn-ran tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("ZeroDivisionError")
    expect(notebook.output(failing)).to_contain_text("ZeroDivisionError")  # its own panel
    link = rows.first.get_by_role("link", name=re.compile(r"Cell In\[\d+\]"))
    link.click()
    expect(notebook.cell(failing).locator(".cm-content")).to_be_focused()
    panel.get_by_role("button", name="Shut down", exact=True).click()
    panel.get_by_role("button", name="Shut down", exact=True).click()
    expect(panel).to_have_count(0)
    shown = notebook.text(started)
    assert "2 live ranks ended by the Shut down button" in shown
    assert "ZeroDivisionError" in shown


@pytest.mark.slow
@pytest.mark.leaves("processes")  # of a kernel restarted by an earlier test
def test_cells_that_end_before_their_panel_loads_leave_no_error(restarted: LabNotebook) -> None:
    restarted.reload()
    start = restarted.add("%xla_start -n 1")
    cells = [start, *(restarted.add(f"%%xla\nprint({number})") for number in range(20))]
    for cell in cells:
        restarted.run(cell)
    restarted.done(cells[-1])
    restarted.page.wait_for_timeout(1000 * (ANYWIDGET_WAITS + 0.5))
    assert [error for error in restarted.errors if "anywidget" in error] == []
    restarted.wait_for("1 rank finished", cells[-1])


@pytest.mark.slow  # test_flows.py has similar tests
@pytest.mark.leaves("processes")  # of a kernel restarted by an earlier test
def test_panel_works_after_reload_until_ranks_end(restarted: LabNotebook) -> None:
    output = restarted.output(restarted.execute("%xla_start -n 1"))
    headline = output.locator(".xn-headline")
    expect(headline).to_have_text("1 live rank, idle")
    restarted.save()
    restarted.reload()
    expect(headline).to_have_text("1 live rank, idle")
    again = restarted.output(restarted.execute("%xla_ranks"))
    expect(output).to_contain_text(re.compile(r"Moved to Cell In\[\d+\]\."))
    output, headline = again, again.locator(".xn-headline")
    restarted.save()
    restarted.reload()
    expect(headline).to_have_text("1 live rank, idle")
    restarted.execute("%xla_shutdown")
    expect(headline).to_have_count(0)
    expect(output.get_by_text("1 live rank ended").first).to_be_visible()
    restarted.page.wait_for_timeout(1000 * (view._LOADS + 0.5))  # until its model is closed
    expect(output.get_by_text("1 live rank ended").first).to_be_visible()


@pytest.mark.slow  # test_flows.py has a similar test
@pytest.mark.leaves("temporary", "processes")  # of the old and the new kernel
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_kernel_restart_after_reload_freezes_panel(restarted: LabNotebook, busy: bool) -> None:
    """JupyterLab's widget manager reports the restart; test_flows.py tests its failure."""
    restarted.execute("%xla_start -n 1")
    if busy:
        restarted.run(restarted.add("%%xla\nimport time\nwhile True: time.sleep(0.1)"))
    restarted.save()
    restarted.reload()
    if busy:
        restarted.interrupt()
    panel = restarted.output(restarted.execute("%xla_ranks")).locator(".xn-panel")
    expect(panel.locator(".xn-headline")).to_have_text("1 live rank, idle")
    restarted.restart()
    told = re.compile(r"^Kernel restarted; last update \d\d:\d\d:\d\d$")
    expect(panel.locator(".xn-headline")).to_have_text(told)
    expect(panel.get_by_role("button", name="Shut down")).to_be_disabled()
    assert restarted.text(restarted.execute("1 + 1")) == "2"
    again = restarted.output(restarted.execute("%load_ext xla_nb\n%xla_start -n 1"))
    expect(again.locator(".xn-headline")).to_have_text("1 live rank, idle")


@pytest.mark.leaves("temporary", "processes")
def test_kernel_shutdown_without_notice_freezes_panel(restarted: LabNotebook) -> None:
    """The last test: no kernel is left."""
    started = restarted.execute("import os\n%xla_start -n 1\nprint('pid', os.getpid())")
    headline = restarted.output(started).locator(".xn-headline")
    expect(headline).to_have_text("1 live rank, idle")
    pid = re.findall(r"pid (\d+)", restarted.text(started))[0]
    halt(int(pid))
    restarted.command("kernelmenu:shutdown")
    expect(headline).to_have_text(re.compile("^Kernel disconnected; last update"))

"""The panel of live ranks: its page alone, whose kernel is the test, and in a real JupyterLab."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.harness import Panel, about, block, card
from tests.browser.lab import LabNotebook
from tests.support.stopping import halt
from xla_nb.views.panel import widget

ANYWIDGET_WAITS = 2.0  # seconds for a model, until it reports that it failed
AGAIN = "void (unmount(), sent.length = 0, mount(document.getElementById('here')))"


def live(idle: bool = True, since: float = 12.0, **more: Any) -> dict[str, Any]:
    """What is told of the whole: `since` seconds ago it became so."""
    own = {"name": "ranks", "since": time.time() - since, "idle": idle}
    sentence = "4 live ranks, idle" if idle else "Cell In[7] is running on ranks 0–3"
    diagnosis = {"sentence": sentence, "level": "calm", "ranks": []}
    return about(cell="2 cells", diagnosis=diagnosis, live=own, **more)


def ran(number: int, outcome: str = "finished", **more: Any) -> dict[str, Any]:
    """A cell of live ranks."""
    took = "" if outcome == "running" else "1.5 s"
    whole = {"number": number, "label": f"Cell In[{number + 4}]", "ranks": [0, 1, 2, 3]}
    return {**whole, "outcome": outcome, "told": outcome, "took": took, **more}


def asked(state: str = "shown", **more: Any) -> dict[str, Any]:
    """The variables of live ranks, as the kernel sends them."""
    rows = [
        {
            "verdict": "different",
            "cells": ["model", "Net", "", "rank 2 differs"],
            "lines": ["w: 3"],
        },
        {"verdict": "equal", "cells": ["lr", "float", "", "equal"], "lines": []},
    ]
    told = {
        "summary": "2 names on 4 ranks: 1 differs",
        "titles": ["Name", "Type", "Size", "Across"],
    }
    whole = {**told, "rows": rows, "notes": [], "after": "Cell In[6]", "old": False, **more}
    return {"type": "variables", "run": "run-1", "state": state, **whole}


@pytest.fixture
def panel(page: Page) -> Iterator[Panel]:
    """A panel of four live ranks that rest."""
    panel = Panel(page)
    panel.begin(*(card(rank, "idle", place="") for rank in range(4)), about=live())
    yield panel
    panel.page.evaluate("localStorage.clear()")
    panel.leave()
    assert panel.problems == []


def button(panel: Panel, name: str) -> Any:
    return panel.page.get_by_role("button", name=name, exact=True)


def table(panel: Panel, section: str) -> list[list[str]]:
    """The cells of the rows in a section's table."""
    rows = panel.page.locator(f".xn-{section} tbody tr").all()
    return [row.locator("td").all_inner_texts() for row in rows]


# ---------------------------------------------------------------- idle, or not


def test_idle_ranks_are_told_with_the_time_since_their_last_cell(panel: Panel) -> None:
    expect(panel.page.locator(".xn-headline")).to_have_text("4 live ranks, idle")
    expect(panel.page.locator(".xn-elapsed")).to_have_text(re.compile(r"^idle for 1\d s$"))
    expect(panel.page.locator(".xn-panel")).to_have_attribute("data-state", "idle")
    expect(panel.page.locator(".xn-counts").first).to_have_text("4 idle")
    expect(panel.page.locator("[role=option]").first).to_contain_text("idle")


def test_how_long_all_ranks_are_idle_is_told_once(panel: Panel) -> None:
    """Each was idle a little before the whole: two roundings of one time would differ."""
    first = panel.page.locator("[role=option]").first
    cards = [card(rank, "idle", place="", since=time.time() - 13) for rank in range(4)]
    panel.tell(cards=cards)
    assert first.locator(".xn-what").inner_text() == "idle"
    panel.tell(about=live(idle=False), cards=[card(rank) for rank in range(1, 4)])
    expect(first.locator(".xn-what")).to_have_text(re.compile(r"^idle · 1\d s$"))


def test_a_cell_that_runs_is_told_with_its_own_time(panel: Panel) -> None:
    cards = [card(rank) for rank in range(4)]
    panel.tell(about=live(idle=False, since=3.0), cards=cards, ran=[ran(3, "running")])
    expect(panel.page.locator(".xn-headline")).to_have_text("Cell In[7] is running on ranks 0–3")
    expect(panel.page.locator(".xn-elapsed")).to_have_text(re.compile(r"^running for [3-9] s$"))
    assert table(panel, "ran")[0][3:] == ["running", ""]


def test_a_restarted_kernel_runs_no_cell_any_more(panel: Panel) -> None:
    about_live = about(cell="3 cells, 1 running", live={"since": None, "idle": False})
    panel.tell(about=about_live, ran=[ran(3, "running")])
    panel.page.evaluate("document.querySelector('.xn-panel').xnView.store.freeze()")
    expect(panel.page.locator(".xn-ran tbody .xn-state").first).to_have_text("stopped")
    expect(panel.page.locator(".xn-sub")).not_to_contain_text("running")


def test_output_is_shown_only_where_there_is_some_between_cells(panel: Panel) -> None:
    output = panel.page.locator(".xn-output")
    expect(output).to_be_hidden()
    panel.tell(lines=[block(1, "a thread goes on")])
    expect(output).to_be_visible()


# ---------------------------------------------------------------- cells


def test_cells_are_listed_newest_first_with_how_they_went(panel: Panel) -> None:
    failed = ran(2, "failed", told="Rank 1 failed: boom", ranks=[1])
    panel.tell(ran=[ran(1), failed])
    assert table(panel, "ran") == [
        ["2", "Cell In[6]", "1", "Rank 1 failed: boom", "1.5 s"],
        ["1", "Cell In[5]", "0–3", "finished", "1.5 s"],
    ]
    panel.tell(ran=[ran(3, "running")])
    panel.tell(ran=[ran(3)])
    assert [row[0] for row in table(panel, "ran")] == ["3", "2", "1"]


def test_a_cell_in_which_something_was_amiss_is_amber_with_its_sentence(panel: Panel) -> None:
    told = "finished; `w` differs between ranks since Cell In[6]"
    panel.tell(ran=[ran(1), {**ran(2), "outcome": "warning", "told": told}])
    first, second = panel.page.locator(".xn-ran tbody tr .xn-state").all()
    expect(first).to_have_text(told)
    assert panel.page.locator(".xn-panel").evaluate(
        "n => getComputedStyle(n).getPropertyValue('--xn-warning')"
    ) == first.evaluate("n => getComputedStyle(n).getPropertyValue('--xn-phase')")
    assert first.evaluate("n => getComputedStyle(n).color") != second.evaluate(
        "n => getComputedStyle(n).color"
    )


def test_the_newest_fifty_cells_are_kept(panel: Panel) -> None:
    panel.tell(ran=[ran(number) for number in range(1, 71)])
    assert [row[0] for row in table(panel, "ran")] == [str(n) for n in range(70, 20, -1)]


# ---------------------------------------------------------------- variables


def test_variables_are_asked_for_once_their_section_is_open(panel: Panel) -> None:
    assert panel.sent("variables") == []
    button(panel, "Variables").click()
    panel.wait_sent("variables")
    panel.give(asked("asking", rows=[], summary=""))
    expect(panel.page.locator(".xn-variables")).to_contain_text("Asking the ranks…")
    panel.give(asked())
    words = "2 names on 4 ranks: 1 differs · after Cell In[6]"
    expect(panel.page.locator(".xn-variables")).to_contain_text(words)
    titles = panel.page.locator(".xn-variables th").all_inner_texts()
    assert titles == ["Name", "Type", "Across"]  # nothing has a size
    assert table(panel, "variables") == [
        ["model", "Net", "rank 2 differs"],
        ["w: 3"],
        ["lr", "float", "equal"],
    ]
    button(panel, "Variables").click()
    panel.wait_sent("no variables")


def test_variables_that_are_old_say_so_and_can_be_asked_for_again(panel: Panel) -> None:
    button(panel, "Variables").click()
    panel.give(asked(old=True))
    expect(panel.page.locator(".xn-variables")).to_contain_text("cells have run since")
    button(panel, "Refresh").click()
    panel.wait_sent("variables", 2)


def test_variables_are_not_to_be_had_while_a_cell_runs(panel: Panel) -> None:
    button(panel, "Variables").click()
    panel.give(asked("busy"))
    expect(panel.page.locator(".xn-variables")).to_contain_text("Asked for when no cell runs")
    expect(button(panel, "Refresh")).to_be_disabled()
    assert len(table(panel, "variables")) == 3  # those of before


def test_ranks_that_do_not_answer_for_their_variables_are_told(panel: Panel) -> None:
    button(panel, "Variables").click()
    panel.give(asked(rows=[], problem="Rank 1 exited with status 3."))
    expect(panel.page.locator(".xn-variables")).to_contain_text("Rank 1 exited with status 3.")


def test_an_open_section_of_variables_is_remembered(panel: Panel) -> None:
    button(panel, "Variables").click()
    panel.wait_sent("variables")
    panel.page.evaluate(AGAIN)
    panel.wait_sent("variables")


def test_variables_of_a_narrow_page_keep_short_values_on_one_line(panel: Panel) -> None:
    panel.page.set_viewport_size({"width": 360, "height": 1400})
    cells = ["x", "Tensor", "(100, 32) float32", "xla:0", "12 KiB", "0–3", "equal"]
    titles = ["Name", "Type", "Value", "Device", "Size", "Ranks", "Across ranks"]
    button(panel, "Variables").click()
    panel.give(asked(titles=titles, rows=[{"verdict": "equal", "cells": cells, "lines": []}]))
    cell = panel.page.locator(".xn-variables tbody td")
    expect(cell).to_have_count(len(cells))
    heights = cell.evaluate_all(
        "all => all.map(td => { const range = document.createRange();"
        " range.selectNodeContents(td); return range.getBoundingClientRect().height; })"
    )
    assert max(heights) < 1.5 * min(heights)


# ---------------------------------------------------------------- the end


def test_shutdown_is_asked_for_at_a_second_click(panel: Panel) -> None:
    panel.page.evaluate(
        "void (answer = ({type, run, request}) => give({type: 'ack', run, request}))"
    )
    button(panel, "Shut down").click()
    expect(panel.page.locator(".xn-say")).to_contain_text("What the ranks hold will be lost.")
    assert panel.sent("shutdown") == []
    button(panel, "Shut down").click()
    panel.wait_sent("shutdown")
    expect(button(panel, "Shutting down…")).to_be_disabled()
    assert panel.page.evaluate("interrupts") == 0


def test_a_kernel_that_does_not_answer_is_not_interrupted_to_shut_down(panel: Panel) -> None:
    button(panel, "Shut down").click()
    button(panel, "Shut down").click()
    expect(panel.page.locator(".xn-say")).to_contain_text("%xla_shutdown ends the ranks.")
    expect(button(panel, "Shut down")).to_be_enabled()
    assert panel.page.evaluate("interrupts") == 0


# ---------------------------------------------------------------- in JupyterLab


def test_live_ranks_in_jupyterlab(notebook: LabNotebook) -> None:
    started = notebook.execute("%xla_start -n 2")
    panel = notebook.output(started).locator(".xn-panel")
    expect(panel.locator(".xn-headline")).to_have_text("2 live ranks, idle")
    notebook.execute("%%xla\nkept = rank")
    failing = notebook.execute("%%xla 1\n1 / 0")
    rows = panel.locator(".xn-ran tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("ZeroDivisionError")
    expect(notebook.output(failing)).to_contain_text("ZeroDivisionError")  # its own panel
    panel.get_by_role("button", name="Variables", exact=True).click()
    expect(panel.locator(".xn-variables tbody")).to_contain_text("kept")
    link = rows.first.get_by_role("button", name=re.compile(r"Cell In\[\d+\]"))
    link.click()
    expect(notebook.cell(failing).locator(".cm-content")).to_be_focused()
    panel.get_by_role("button", name="Shut down", exact=True).click()
    panel.get_by_role("button", name="Shut down", exact=True).click()
    expect(panel).to_have_count(0)
    shown = notebook.text(started)
    assert "2 live ranks ended by the Shut down button" in shown
    assert "ZeroDivisionError" in shown


@pytest.mark.slow
@pytest.mark.leaves("processes")  # of a kernel that a test before has restarted
def test_cells_that_end_before_the_page_has_loaded_their_panel_leave_no_error(
    restarted: LabNotebook,
) -> None:
    restarted.reload()
    start = restarted.add("%xla_start -n 1")
    cells = [start, *(restarted.add(f"%%xla\nprint({number})") for number in range(20))]
    for cell in cells:
        restarted.run(cell)
    restarted.done(cells[-1])
    restarted.page.wait_for_timeout(1000 * (ANYWIDGET_WAITS + 0.5))
    assert [error for error in restarted.errors if "anywidget" in error] == []
    restarted.wait_for("1 rank finished", cells[-1])


@pytest.mark.slow  # a run's does in test_flows.py, and live ranks' is shown again there
@pytest.mark.leaves("processes")  # of a kernel that a test before has restarted
def test_after_a_reload_the_panel_goes_on_until_the_ranks_end(restarted: LabNotebook) -> None:
    output = restarted.output(restarted.execute("%xla_start -n 1"))
    headline = output.locator(".xn-headline")
    expect(headline).to_have_text("1 live rank, idle")
    restarted.save()
    restarted.reload()
    expect(headline).to_have_text("1 live rank, idle")
    again = restarted.output(restarted.execute("%xla_ranks"))
    expect(output).to_contain_text(re.compile(r"These live ranks are shown in Cell In\[\d+\]\."))
    output, headline = again, again.locator(".xn-headline")
    restarted.save()
    restarted.reload()
    expect(headline).to_have_text("1 live rank, idle")
    restarted.execute("%xla_shutdown")
    expect(headline).to_have_count(0)
    expect(output.get_by_text("1 live rank ended").first).to_be_visible()
    restarted.page.wait_for_timeout(1000 * (widget._LOADS + 0.5))  # then its model is closed
    expect(output.get_by_text("1 live rank ended").first).to_be_visible()


@pytest.mark.slow  # nearly the same in test_flows.py
@pytest.mark.leaves("temporary", "processes")  # of the kernel before, and the one after
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "during a cell"])
def test_after_a_reload_a_restarted_kernel_freezes_the_panel(
    restarted: LabNotebook, busy: bool
) -> None:
    """Where JupyterLab's widget manager tells it; where that fails: test_flows.py."""
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
def test_a_kernel_that_is_shut_down_without_a_word_freezes_the_panel(
    restarted: LabNotebook,
) -> None:
    """The last one: no kernel is left."""
    started = restarted.execute("import os\n%xla_start -n 1\nprint('pid', os.getpid())")
    headline = restarted.output(started).locator(".xn-headline")
    expect(headline).to_have_text("1 live rank, idle")
    pid = re.findall(r"pid (\d+)", restarted.text(started))[0]
    halt(int(pid))
    restarted.command("kernelmenu:shutdown")
    expect(headline).to_have_text(re.compile("^Kernel disconnected; last update"))

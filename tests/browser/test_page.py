"""The panel's page alone: what it shows and what it sends.

There is no kernel and no JupyterLab: `harness.Panel` loads the shipped page, and the test acts as
its kernel.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.browser.harness import RUN, Panel, block, card, lane, trouble
from xla_nb.messages.events import HangReported, StackGroup
from xla_nb.monitor.snapshot import ENDED, Bar, Card, Diagnosis, Series
from xla_nb.views.facts import figure as in_words
from xla_nb.views.observer import Figure
from xla_nb.views.rendering import html
from xla_nb.wording import lasting

Opener = Callable[..., Panel]

ANOTHER_VIEW = "void mount(document.body.appendChild(document.createElement('div')))"
ACKNOWLEDGE = "void (answer = ({request}) => give({type: 'ack', request}))"


@pytest.fixture
def opened(chromium: BrowserContext, page: Page) -> Iterator[Opener]:
    """Opens panels and checks that none raises an error or requests a file."""
    panels: list[Panel] = []

    def opener(**options: Any) -> Panel:
        panels.append(Panel(chromium.new_page() if panels else page, **options))
        return panels[-1]

    yield opener
    for panel in panels:
        panel.leave() if panel.page is page else panel.page.close()
    assert [problem for panel in panels for problem in panel.problems] == []


@pytest.fixture
def panel(opened: Opener) -> Panel:
    """A panel of four running ranks."""
    panel = opened()
    panel.begin(*map(card, range(4)))
    return panel


def option(panel: Panel, rank: int) -> Any:
    return panel.page.locator(f'[role=option][data-rank="{rank}"]')


def button(panel: Panel, name: str) -> Any:
    return panel.page.get_by_role("button", name=name, exact=True)


def region(panel: Panel, name: str) -> Any:
    return panel.page.get_by_role("region", name=name, exact=True)


#: Scrolls like a user, after the page has handled its own scroll to the end, a frame later.
SCROLL = """(log, to) => new Promise((done) => {
    const next = (then) => requestAnimationFrame(then);
    next(() => next(() => { log.scrollTop = to; done(); }));
})"""


def scroll(panel: Panel, to: int) -> None:
    panel.page.locator(".xn-log").evaluate(SCROLL, to)


def warned(sentence: str, *ranks: int, level: Any = "warning") -> Diagnosis:
    return Diagnosis(sentence, level, ranks)


# ------------------------------------------------------------------------------ the whole page


def test_new_page_requests_whole_message(opened: Opener) -> None:
    opened().wait_sent("whole")


def test_open_panel_hides_only_its_own_snapshot(panel: Panel) -> None:
    panel.page.evaluate(
        "document.body.insertAdjacentHTML('beforeend', '<p class=\"xn-saved-run-1\">own</p>"
        '<p class="xn-saved-run-12">another</p>\')'
    )
    expect(panel.page.get_by_text("own", exact=True)).to_be_hidden()
    expect(panel.page.get_by_text("another", exact=True)).to_be_visible()
    panel.page.evaluate("unmount()")
    expect(panel.page.get_by_text("own", exact=True)).to_be_visible()


def test_messages_before_first_view_are_kept(opened: Opener) -> None:
    panel = opened(seen=False)
    panel.begin(card(0, place="Cell In[3], line 77"))
    panel.page.evaluate("void mount(document.getElementById('here'))")
    expect(option(panel, 0)).to_contain_text("line 77")


def test_each_view_selects_its_own_rank(panel: Panel) -> None:
    panel.page.evaluate(ANOTHER_VIEW)
    panels = panel.page.locator(".xn-panel")
    panels.last.locator('[role=option][data-rank="2"]').click()
    expect(panels.last.locator("[aria-selected=true]")).to_have_attribute("data-rank", "2")
    expect(panels.first.locator("[aria-selected=true]")).to_have_count(0)


def test_closing_one_view_keeps_the_other_working(panel: Panel) -> None:
    panel.page.evaluate(ANOTHER_VIEW)
    panel.page.evaluate("unmount()")
    expect(panel.page.locator(".xn-panel")).to_have_count(1)
    panel.tell(card(1, "failed"))
    expect(option(panel, 1)).to_have_attribute("data-phase", "failed")


def test_gaps_in_sequence_request_whole_message_at_most_every_two_seconds(panel: Panel) -> None:
    asked = len(panel.sent("whole"))
    gaps = []
    for _ in range(5):
        panel.seq += 5
        gaps.append(panel.news())
    at_once = panel.page.evaluate(
        "gaps => { give(...gaps); return sent.filter(m => m.type === 'whole').length; }", gaps
    )
    assert at_once <= asked + 1
    panel.wait_sent("whole", asked + 1)


def test_whole_message_replaces_page_contents(panel: Panel) -> None:
    panel.tell(troubles=(trouble(0),), lines=[block(0, "kept")])
    expect(region(panel, "Errors and notes")).to_be_visible()
    panel.begin(card(0), card(1))
    expect(region(panel, "Errors and notes")).to_be_hidden()
    assert panel.order() == [0, 1]
    assert panel.rows() == ["kept"]


def test_redraw_keeps_focus_selection_and_open_folds(panel: Panel) -> None:
    long = "\n".join(f"frame {n}" for n in range(60))
    panel.tell(troubles=(trouble(3, text=long), trouble(2, title="other", text="short")))
    errors = region(panel, "Errors and notes")
    errors.get_by_text("rank 2").click()
    expect(errors.get_by_text("short")).to_be_visible()
    option(panel, 1).focus()
    panel.page.evaluate(
        "getSelection().selectAllChildren(document.querySelector('[data-rank=\"2\"] td'))"
    )
    first = panel.page.evaluate("() => document.activeElement.dataset.rank")
    panel.tell(*(card(rank, "waiting", detail="in all_reduce") for rank in range(4)))
    expect(option(panel, 0)).to_contain_text("all_reduce")
    assert panel.page.evaluate("String(getSelection())") == "2"
    assert panel.page.evaluate("() => document.activeElement.dataset.rank") == first == "1"
    panel.tell(troubles=(trouble(3, text=long), trouble(2, title="news", text="short")))
    expect(errors).to_contain_text("news")
    expect(errors.get_by_text("short")).to_be_visible()


@pytest.mark.parametrize(
    ("colour", "dark"), [("#fff", "false"), ("#111", "true")], ids=["light", "dark"]
)
def test_panel_follows_theme_of_page(opened: Opener, colour: str, dark: str) -> None:
    panel = opened(css=f":root {{ --jp-layout-color0: {colour} }}")
    expect(panel.page.locator(".xn-panel")).to_have_attribute("data-dark", dark)


# ------------------------------------------------------------------------------ head


def test_head_shows_cell_and_counts_ranks_by_phase(panel: Panel) -> None:
    panel.tell(card(2, "waiting"), headline="3 ranks run, 1 waits", simulated=True)
    head = panel.page.locator(".xn-head")
    for text in ("Cell In[3]", "3 ranks run, 1 waits", "simulated TPU host"):
        expect(head).to_contain_text(text)
    counts = panel.page.get_by_role("list", name="Ranks by phase")
    expect(counts.locator("[data-phase=running]")).to_contain_text("3 running")
    expect(counts.locator("[data-phase=waiting]")).to_contain_text("1 waiting")


def test_new_run_is_one_line_for_half_a_second(opened: Opener) -> None:
    panel = opened()
    panel.begin(card(0), started=time.time(), lines=[block(0, "soon")])
    log = panel.page.locator(".xn-log")
    assert not log.is_visible()
    expect(button(panel, "Stop")).to_be_visible()
    expect(log).to_be_visible()  # half a second later


def speak_at_once(panel: Panel) -> None:
    """Announce the next title even within five seconds of the last one."""
    panel.page.evaluate("document.querySelector('.xn-panel').xnView.parts.head.spoken = -5000")


def test_elapsed_time_counts_without_messages(panel: Panel) -> None:
    elapsed = panel.page.locator(".xn-sub")
    before = elapsed.inner_text()
    expect(elapsed).not_to_have_text(before)


@pytest.mark.parametrize("what", ["panel", "page"])
def test_elapsed_time_updates_when_panel_becomes_visible(panel: Panel, what: str) -> None:
    elapsed = panel.page.locator(".xn-sub")
    root = panel.page.locator(".xn-panel")
    if what == "panel":
        root.evaluate("root => (root.style.display = 'none')")
        panel.page.wait_for_function("!document.querySelector('.xn-panel').xnView.inSight")
    root.evaluate("root => clearInterval(root.xnView.clock)")  # no further ticks
    before = elapsed.text_content() or ""
    panel.page.wait_for_timeout(1100)
    assert elapsed.text_content() == before
    if what == "panel":
        root.evaluate("root => (root.style.display = '')")
    else:
        panel.page.evaluate("void document.dispatchEvent(new Event('visibilitychange'))")
    expect(elapsed).not_to_have_text(before, timeout=5000)


@pytest.mark.parametrize(("seconds", "words"), [(5, "5 s"), (65, "1 min 5 s"), (7500, "2 h 5 min")])
def test_page_formats_durations_like_kernel(panel: Panel, seconds: float, words: str) -> None:
    assert lasting(seconds) == words
    panel.tell(started=time.time() - seconds - 0.5)
    shown = panel.page.locator("[data-since]").inner_text()
    assert shown in [lasting(seconds + late) for late in range(60)]  # the page may be slow


def test_run_bar_shows_counts_rate_and_remaining_time(panel: Panel) -> None:
    panel.tell(bar=Bar("epochs", 250, 1000, 12.5, 60))
    shown = panel.page.get_by_role("progressbar", name="epochs")
    expect(shown).to_have_attribute("aria-valuenow", "25")
    words = "epochs: 25 % · 250 of 1,000 · 12.5/s · 1 min to go"
    expect(panel.page.locator(".xn-runbar")).to_have_text(words)


def test_kernel_restart_stops_clock_and_clears_bar_and_counts(panel: Panel) -> None:
    panel.tell(bar=Bar("", 1, 4, 2, 2))
    expect(panel.page.locator(".xn-runbar")).to_contain_text("2 s to go")
    panel.page.evaluate("document.querySelector('.xn-panel').xnView.store.freeze()")
    expect(panel.page.locator(".xn-head")).to_contain_text("Kernel restarted")
    clock = panel.page.locator(".xn-sub").inner_text()
    expect(panel.page.locator(".xn-runbar")).to_be_empty()
    expect(panel.page.locator(".xn-counts")).to_be_empty()
    expect(button(panel, "Stacks")).to_be_disabled()
    panel.page.wait_for_timeout(1100)
    assert panel.page.locator(".xn-sub").inner_text() == clock


SAYS = "session => kernel.iopubMessage.emit({ header: { msg_type: 'status', session } })"


def test_messages_from_new_session_mean_kernel_restarted(panel: Panel) -> None:
    """A broken widget manager, as after some reloads, reports no restart."""
    headline = panel.page.locator(".xn-headline")
    before = headline.inner_text()
    panel.page.evaluate(SAYS, "first")
    panel.page.evaluate(SAYS, "first")
    panel.settle()
    assert headline.inner_text() == before
    panel.page.evaluate(SAYS, "second")
    expect(headline).to_have_text(re.compile(r"^Kernel restarted; last update \d\d:\d\d:\d\d$"))
    expect(panel.page.locator("[data-action=stop]")).to_be_disabled()


def test_panel_reports_disconnected_kernel(panel: Panel) -> None:
    panel.page.evaluate("kernel.disposed.emit()")
    expect(panel.page.locator(".xn-headline")).to_contain_text("Kernel disconnected; last update")


def test_unloaded_panel_removes_its_kernel_listeners(panel: Panel) -> None:
    panel.page.evaluate("unload()")
    assert panel.page.evaluate("kernel.iopubMessage.slots.size + kernel.disposed.slots.size") == 0


def test_diagnosis_is_the_title_and_marks_its_ranks(panel: Panel) -> None:
    sentence = "3 ranks have been waiting for rank 2, at line 6"
    speak_at_once(panel)
    panel.tell(diagnosis=warned(sentence, 2))
    heading = panel.page.get_by_role("heading", level=3)
    expect(heading).to_contain_text(sentence)
    expect(panel.page.locator(".xn-panel")).to_have_attribute("data-level", "warning")
    expect(panel.page.locator("[data-marked]")).to_have_count(1)
    plain = option(panel, 1).evaluate("n => getComputedStyle(n).backgroundColor")
    expect(option(panel, 2)).not_to_have_css("background-color", plain)
    panel.choose(2)  # a selected rank keeps its mark
    expect(option(panel, 2)).not_to_have_css("background-color", plain)
    expect(panel.page.locator(".xn-live")).to_have_text(sentence)
    panel.tell(diagnosis=warned("4 ranks running", 0, level="calm"))
    expect(heading).to_contain_text("4 ranks running")
    expect(panel.page.locator("[data-marked]")).to_have_count(0)


def test_stop_reason_appears_once_and_stack_in_notice_keeps_its_lines(panel: Panel) -> None:
    why = "Stopped by an interrupt"
    note = "Sent SIGTERM to rank 1\n  File x, line 9\n    wait()"
    found = warned(f"{why}; 1 rank still waiting")
    panel.tell(stopping=why, diagnosis=found, notices=(note,))
    expect(panel.page.locator(".xn-headline")).to_have_text(found.sentence)
    expect(panel.page.locator(".xn-say")).to_be_empty()
    assert note in region(panel, "Errors and notes").inner_text()
    panel.tell(diagnosis=warned("Rank 1 hangs"))
    expect(panel.page.locator(".xn-sub")).to_contain_text(f"stopping: {why}")


def test_diagnosis_of_failed_run_is_the_title(panel: Panel) -> None:
    panel.tell(diagnosis=warned("Rank 1 failed", level="bad"), ok=False)
    expect(panel.page.get_by_role("heading", level=3)).to_contain_text("Rank 1 failed")
    expect(panel.page.locator(".xn-panel")).to_have_attribute("data-level", "bad")


def test_stop_button_stays_visible_when_page_scrolls(panel: Panel) -> None:
    panel.begin(*map(card, range(32)))
    panel.page.set_viewport_size({"width": 1000, "height": 400})
    panel.page.mouse.wheel(0, 500)
    panel.page.wait_for_function("scrollY > 100")
    stop = button(panel, "Stop").bounding_box()
    assert stop is not None
    assert 0 <= stop["y"] < 60
    panel.page.set_viewport_size({"width": 1000, "height": 1400})


# ------------------------------------------------------------------------------ stop, stacks


def test_stop_does_not_interrupt_responsive_kernel(panel: Panel) -> None:
    panel.page.evaluate(ACKNOWLEDGE)
    button(panel, "Stop").click()
    expect(panel.page.locator(".xn-say")).to_contain_text("Stopping the ranks")
    expect(button(panel, "Stopping…")).to_be_visible()
    assert panel.page.evaluate("interrupts") == 0
    panel.tell(elapsed=3.25, ok=False)
    expect(button(panel, "Stop")).to_be_disabled()
    expect(panel.page.locator(".xn-sub")).to_contain_text("3.25 s")
    expect(panel.page.locator(".xn-say")).to_be_hidden()


def test_stop_interrupts_unresponsive_kernel(panel: Panel) -> None:
    button(panel, "Stop").click()
    panel.page.wait_for_function("interrupts === 1")
    expect(panel.page.locator(".xn-say")).to_contain_text("Interrupted the kernel")


def test_second_click_on_stop_sends_another_stop_request(panel: Panel) -> None:
    panel.page.evaluate(ACKNOWLEDGE)
    button(panel, "Stop").click()
    expect(panel.page.locator(".xn-say")).to_contain_text("Click again to end them now")
    button(panel, "Stopping…").click()
    panel.wait_sent("stop", 2)
    expect(panel.page.locator(".xn-say")).to_contain_text("Ending the ranks")
    assert panel.page.evaluate("interrupts") == 0


def test_second_click_on_stop_interrupts_unresponsive_kernel_again(panel: Panel) -> None:
    button(panel, "Stop").click()
    panel.page.wait_for_function("interrupts === 1")
    button(panel, "Stopping…").click()
    panel.page.wait_for_function("interrupts === 2")


def test_stop_without_kernel_names_toolbar_button(opened: Opener) -> None:
    panel = opened(kernel=False)
    panel.begin(card(0))
    button(panel, "Stop").click()
    expect(panel.page.locator(".xn-say")).to_contain_text("Press ■")


def test_stacks_appear_in_groups_below_ranks(panel: Panel) -> None:
    before = option(panel, 0).bounding_box()
    button(panel, "Stacks").click()
    stack = "Cell In[3], line 7, in train\n    dist.all_reduce(x)\nFile x.py, line 1, in main"
    silent = StackGroup((3,), "Cell In[3], line 9", "", "does not answer")
    groups = [silent, StackGroup((0, 1, 2), "Cell In[3]", stack, "")]
    answer = {"type": "stacks", "html": html.stacks(groups)}
    panel.give({**answer, "request": panel.wait_sent("stacks")["request"]})
    shown = region(panel, "Stacks")
    expect(shown).to_contain_text(re.compile(r"As of \d\d:\d\d:\d\d, innermost line first\."))
    for text in ("rank 3 at Cell In[3], line 9 does not answer", "ranks 0–2", "all_reduce(x)"):
        expect(shown).to_contain_text(text)
    assert option(panel, 0).bounding_box() == before  # the rows do not move
    button(panel, "Close stacks").click()
    expect(shown).to_be_hidden()


def test_stacks_closed_before_reply_stay_closed(panel: Panel) -> None:
    button(panel, "Stacks").click()
    button(panel, "Close stacks").click()
    answer = {"type": "stacks", "html": html.stacks([StackGroup((0,), "", "", "")])}
    panel.give({**answer, "request": panel.wait_sent("stacks")["request"]})
    expect(region(panel, "Stacks")).to_be_hidden()


def test_stacks_without_reply_refer_to_rows(panel: Panel) -> None:
    button(panel, "Stacks").click()
    shown = region(panel, "Stacks")
    expect(shown).to_have_attribute("data-state", "silent")
    expect(shown).to_contain_text("No answer yet. Each row shows where its rank was last seen.")


def test_hang_report_folds_its_stacks_and_disappears_when_over(panel: Panel) -> None:
    verdict = (
        "Rank 0 has been waiting 5 min in all_reduce for rank 1, which is in <b>`queue.get`</b>"
    )
    stack = '  File "Cell In[3]", line 9, in train\n    q.get()'
    group = StackGroup((1,), "Cell In[3], line 9", stack, "no progress for over 5 min")
    hang = HangReported(verdict=verdict, ranks=(), groups=(group,), at=30.0)
    panel.tell(hang=hang, diagnosis=warned(verdict))
    banner = region(panel, "Errors and notes")
    expect(banner).to_contain_text("Where each rank was")
    expect(banner).not_to_contain_text(verdict)  # the verdict is the headline
    place = banner.get_by_text("no progress for over 5 min")
    expect(place).to_be_hidden()
    banner.get_by_text("Where each rank was").click()
    expect(place).to_be_visible()
    panel.begin(*map(card, range(4)))  # open folds stay open after a whole message
    expect(place).to_be_visible()
    panel.tell(diagnosis=Diagnosis(""), ok=False)
    expect(banner).to_contain_text(verdict)
    panel.tell(hang=None)
    expect(banner).to_be_hidden()


# ------------------------------------------------------------------------------ errors


def test_errors_appear_above_ranks(panel: Panel) -> None:
    text = "Traceback\n  Cell In[3], line 12\n\x1b[31mRuntimeError\x1b[0m: shapes"
    first = trouble(0, 2, 3, first=True, text=text, others=("rank 3: other shapes",))
    panel.tell(troubles=(first, trouble(1, title="killed", place="Cell In[3], line 9")))
    errors = region(panel, "Errors and notes")
    for words in ("ranks 0, 2, 3", "rank 0 first", "RuntimeError: shapes", "rank 1", "killed"):
        expect(errors).to_contain_text(words)
    above, below = errors.bounding_box(), option(panel, 0).bounding_box()
    assert above and below and above["y"] < below["y"]
    known = {"title": "RuntimeError: known", "place": "line 12", "text": text, "told": True}
    panel.tell(troubles=(trouble(0, **known),))
    expect(errors).to_contain_text("rank 0")
    expect(errors).not_to_contain_text("known")


# ------------------------------------------------------------------------------ ranks


def cell(panel: Panel, rank: int, name: str) -> Any:
    return option(panel, rank).locator(f".xn-{name}")


def test_row_shows_phase_position_pace_metric_and_memory(panel: Panel) -> None:
    operation = "all_reduce sum scale 0.25 8 tensors"
    waits: Any = {"detail": f"in {operation}, for rank 2", "operation": operation}
    waits |= {"since": time.time() - 75, "step": 0.083, "waits": 0.29}
    series = Series("loss", {1: [(0, 0.5), (1, 0.392)]})
    panel.tell(card(1, "waiting", memory=561 << 20, **waits), series=(series,))
    for name, words in {
        "state": "waiting",
        "at": re.compile(r"^line 7 · in all_reduce, for rank 2 · for 1 min 1\d s$"),
        "step": "≈ 83 ms",
        "waits": "29 %",
        "metric": "0.392",
        "memory": "561 MiB",
    }.items():
        expect(cell(panel, 1, name)).to_contain_text(words)
    names = panel.page.locator(".xn-grid thead")
    expect(names).to_contain_text("lossper syncwaitsmemory")


def test_short_waits_and_running_ranks_show_no_duration(panel: Panel) -> None:
    panel.tell(card(1, "waiting", since=time.time() - 1))
    for rank, phase in enumerate(("running", "waiting")):
        expect(cell(panel, rank, "state")).to_contain_text(phase)
        expect(cell(panel, rank, "at")).to_have_text("line 7")


def test_rows_are_24_pixels_high_and_columns_align(opened: Opener) -> None:
    panel = opened()
    panel.begin(*(card(rank, step=0.1 * rank, memory=rank << 22) for rank in range(1, 9)))
    rows = panel.page.locator("[role=option]")
    boxes = [rows.nth(n).bounding_box() for n in range(8)]
    assert {round(box["height"]) for box in boxes if box} <= {24, 25}
    right = "all => all.map(n => Math.round(n.getBoundingClientRect().right))"
    assert len(set(panel.page.eval_on_selector_all("td.xn-memory", right))) == 1


def test_empty_columns_are_hidden(panel: Panel) -> None:
    expect(panel.page.locator("td.xn-step, td.xn-memory, td.xn-waits")).to_have_count(0)
    panel.tell(card(1, step=1.25, items=9, waits=0.004))
    expect(cell(panel, 1, "step")).to_have_text("1.25 s")
    expect(cell(panel, 0, "step")).to_have_text("")
    expect(panel.page.locator("th.xn-step")).to_have_text("step")
    expect(cell(panel, 1, "waits")).to_have_count(0)
    panel.tell(card(1, step=1.25, waits=0.3))
    expect(cell(panel, 1, "waits")).to_have_text("30 %")
    panel.tell(card(1, items=12))  # steps of very different length
    expect(panel.page.locator("th.xn-step")).to_have_text("step")
    expect(cell(panel, 1, "step")).to_have_text("")


def test_loops_add_a_column_with_progress_of_each_rank(panel: Panel) -> None:
    expect(panel.page.locator("th.xn-done")).to_have_count(0)
    panel.tell(*(card(rank, bars=(Bar("step", 20, 100),)) for rank in range(4)))
    expect(panel.page.locator("td.xn-done")).to_have_text(["20 %"] * 4)
    panel.tell(card(3, bars=(Bar("step", 40, 100),)))
    expect(panel.page.locator("td.xn-done")).to_have_text(["20 %", "20 %", "20 %", "40 %"])


def test_lane_has_picture_label_and_key(panel: Panel) -> None:
    panel.tell(card(2, lane=lane([1], [0.5, 0.25, 0.25], [0, 0, 0, 1])))
    expect(panel.page.locator("th.xn-lane")).to_have_text("last 3 s")
    picture = cell(panel, 2, "lane").locator("svg")
    words = "compiling 1.5 s, running 250 ms, waiting for others 250 ms, waiting for data 1 s"
    expect(picture).to_have_attribute("aria-label", words)
    expect(cell(panel, 1, "lane").locator("svg")).to_have_count(0)
    grid = panel.page.locator(".xn-grid")
    expect(grid).to_contain_text("compiling running waiting for others waiting for data")
    panel.tell(card(2, lane=lane([0, 1], [0, 1])))
    expect(grid).not_to_contain_text("waiting for data")


def test_compile_counts_of_all_ranks_are_shown_as_range(panel: Panel) -> None:
    panel.tell(*(card(rank, compiles=6, compile_seconds=10.9) for rank in range(4)))
    grid = panel.page.locator(".xn-grid")
    expect(grid).to_contain_text("compiles 6compile time 10.9 s")
    panel.tell(card(3, compiles=7, compile_seconds=12))
    expect(grid).to_contain_text("compiles 6 to 7compile time 10.9 s to 12 s")


def test_clicking_row_opens_details_of_rank(panel: Panel) -> None:
    own = {"device": "TPU v4 core 1", "host": "worker-0", "pid": 4711, "detail": "graph 4"}
    device = {"device_used": 8 << 30, "device_limit": 32 << 30}
    known = card(1, "compiling", since=time.time() - 75, line="last line", steps=1204, **device)
    panel.tell(replace(known, bars=(Bar("epoch", 3, None),), **own))
    shown = panel.page.locator(".xn-detail")
    expect(shown).to_be_hidden()
    panel.choose(1)
    for text in ("rank 1", "compiling", "for 1 min 1", "TPU v4 core 1", "worker-0 · pid 4711"):
        expect(shown).to_contain_text(text)
    for text in ("Cell In[3], line 7", "graph 4", "last line", "epoch: 3 done", "syncs 1,204"):
        expect(shown).to_contain_text(text)
    expect(shown).to_contain_text("on device 8.0 GiB of 32.0 GiB")
    option(panel, 2).click()  # the kernel has not sent its details yet
    expect(shown).to_be_hidden()
    panel.tell()
    expect(shown).to_contain_text("rank 2")
    button(panel, "Close").click()
    expect(shown).to_be_hidden()


def test_clicking_link_in_row_does_not_select_rank(opened: Opener) -> None:
    panel = opened()
    panel.page.evaluate("document.body.className = 'jp-Notebook'")  # lines are links there
    panel.begin(card(0), card(1))
    option(panel, 1).get_by_role("link").click()
    expect(panel.page.locator(".xn-say")).to_contain_text("is no longer in this notebook")
    expect(panel.page.locator("[aria-selected=true]")).to_have_count(0)


def test_fallbacks_show_a_warning(panel: Panel) -> None:
    panel.tell(card(1, fallbacks={"aten::x": 1}))
    expect(cell(panel, 1, "state")).to_contain_text("⚠")
    panel.choose(1)
    expect(panel.page.locator(".xn-detail")).to_contain_text("ran on the CPU aten::x 1")


def test_keyboard_moves_between_rows_and_selects_one(panel: Panel) -> None:
    panel.tell(lines=[block(0, "of 0"), block(1, "of 1")])
    stops = panel.page.locator("[role=option][tabindex='0']")
    expect(stops).to_have_count(1)
    stops.focus()
    panel.page.keyboard.press("ArrowRight")
    expect(option(panel, 1)).to_be_focused()
    panel.page.keyboard.press("Enter")
    expect(option(panel, 1)).to_have_attribute("aria-selected", "true")
    panel.settle()
    assert panel.rows() == ["of 1"]
    assert panel.wait_sent("focus")["rank"] == 1
    panel.page.keyboard.press("End")
    expect(option(panel, 3)).to_be_focused()
    panel.page.keyboard.press("ArrowUp")
    expect(option(panel, 2)).to_be_focused()
    panel.page.keyboard.press("Escape")
    expect(panel.page.locator("[aria-selected=true]")).to_have_count(0)
    panel.settle()
    assert sorted(panel.rows()) == ["of 0", "of 1"]
    assert panel.wait_sent("focus", 2)["rank"] is None


def test_256_ranks_are_tiles_in_rank_order(opened: Opener) -> None:
    panel = opened()
    panel.begin(*(card(rank, detail=f"in call_{rank}") for rank in range(256)))
    tiles = panel.page.locator(".xn-tiles [role=option]")
    expect(tiles).to_have_count(256)
    expect(option(panel, 200)).to_have_attribute("title", re.compile("rank 200 · .*in call_200"))
    panel.tell(*(card(rank, "waiting") for rank in range(100, 256)))
    expect(panel.page.locator("[role=option][data-phase=waiting]")).to_have_count(156)
    assert panel.order() == list(range(256))


# ------------------------------------------------------------------------------ hosts


def on_hosts(hosts: int, each: int, lost: int | None = None) -> list[Card]:
    """Cards of ranks on several hosts, optionally with one lost host."""
    of = [rank // each for rank in range(hosts * each)]
    phases: Any = ["died" if host == lost else "running" for host in of]
    return [card(r, phases[r], host=f"w-{host}") for r, host in enumerate(of)]


def workers(hosts: int) -> tuple[str, ...]:
    return tuple(f"w-{n}" for n in range(hosts))


def host(panel: Panel, name: str) -> Any:
    return panel.page.get_by_role("group", name=name, exact=True)


def hosts_shown(panel: Panel) -> list[str]:
    shown = panel.page.locator(".xn-host[role=group]:visible")
    return [str(one.get_attribute("aria-label")) for one in shown.all()]


@pytest.mark.parametrize(("hosts", "each"), [(3, 2), (4, 8), (16, 4)])
def test_ranks_are_grouped_by_host_with_counts_by_phase(
    opened: Opener, hosts: int, each: int
) -> None:
    panel = opened()
    panel.begin(*on_hosts(hosts, each), hosts=workers(hosts))
    panel.tell(card(each, "compiling", host="w-1"))
    assert hosts_shown(panel) == list(workers(hosts))
    ranks = host(panel, "w-1").locator("[role=option]")
    expect(ranks).to_have_count(each)
    expect(ranks.first).to_have_attribute("data-rank", str(each))
    for words in ("1 compiling", f"{each - 1} running"):
        expect(host(panel, "w-1")).to_contain_text(words)
    expect(panel.page.locator(".xn-head")).to_contain_text(f"{hosts} hosts")


def test_single_host_has_no_group(panel: Panel) -> None:
    panel.begin(*on_hosts(1, 4), hosts=("w-0",))
    assert hosts_shown(panel) == []
    assert panel.order() == [0, 1, 2, 3]


def test_lost_host_is_first_and_shows_reason(opened: Opener) -> None:
    panel = opened()
    panel.begin(*on_hosts(16, 4), hosts=workers(16))
    panel.tell(*on_hosts(16, 4, lost=7)[28:32], lost={"w-7": "its node is gone"})
    assert hosts_shown(panel)[0] == "w-7"
    expect(host(panel, "w-7")).to_contain_text("lostits node is gone")
    expect(panel.page.locator(".xn-sub")).to_contain_text("16 hosts, 1 lost")


def test_find_ranks_matches_host_number_and_phase(opened: Opener) -> None:
    panel = opened()
    panel.begin(*on_hosts(16, 4, lost=7), hosts=workers(16))
    for words, found in {
        "W-12": ["w-12"],
        "rank 41": ["w-10"],
        "died": ["w-7"],
        "": None,
    }.items():
        panel.page.get_by_label("Find ranks").fill(words)
        panel.settle()
        assert found is None or hosts_shown(panel) == found
    assert len(hosts_shown(panel)) == 16


def test_find_ranks_by_number_matches_only_that_rank(opened: Opener) -> None:
    panel = opened()
    panel.begin(*(card(rank, detail="in epoch 4") for rank in range(64)))
    for words in ("4", "rank 4"):
        panel.page.get_by_label("Find ranks").fill(words)
        panel.settle()
        expect(panel.page.locator("[role=option]:visible")).to_have_count(1)
        expect(option(panel, 4)).to_be_visible()


def test_find_ranks_reports_no_match(opened: Opener) -> None:
    panel = opened()
    panel.begin(*map(card, range(64)))
    finder = panel.page.get_by_label("Find ranks")
    for words, told in (
        ("99", "No rank 99; the ranks are 0–63."),
        ("asleep", "No rank matches “asleep”."),
    ):
        finder.fill(words)
        expect(panel.page.get_by_text(told)).to_be_visible()
        finder.press("Escape")
        expect(finder).to_have_value("")
        expect(panel.page.get_by_text(told)).to_be_hidden()
        expect(panel.page.locator("[role=option]:visible")).to_have_count(64)


def test_find_ranks_still_applies_after_update(opened: Opener) -> None:
    panel = opened()
    panel.begin(*map(card, range(64)))
    panel.page.get_by_label("Find ranks").fill("7")
    panel.tell(*(card(rank, "waiting") for rank in range(64)))
    expect(panel.page.locator("[role=option]:visible")).to_have_count(1)


def test_clicking_tile_scrolls_to_details_of_rank(opened: Opener) -> None:
    panel = opened()
    panel.page.set_viewport_size({"width": 900, "height": 500})
    panel.begin(*(card(rank, line=f"line of {rank}") for rank in range(256)))
    detail = panel.page.locator(".xn-detail")
    expect(detail).not_to_be_in_viewport()
    panel.choose(40)
    expect(detail).to_be_in_viewport(ratio=1)
    expect(detail.get_by_role("heading", name="rank 40")).to_be_visible()
    for text in ("pid 4040", "line of 40", "xla:40"):
        expect(detail).to_contain_text(text)
    expect(option(panel, 40)).to_have_attribute("aria-selected", "true")


def test_tile_keeps_focus_when_it_moves(opened: Opener) -> None:
    panel = opened()
    panel.begin(*(card(rank) for rank in range(40)))
    option(panel, 22).focus()
    panel.tell(card(22, "failed"))
    expect(panel.page.locator(".xn-tiles [role=option]").first).to_have_attribute("data-rank", "22")
    expect(option(panel, 22)).to_be_focused()


def test_keyboard_moves_between_tiles(opened: Opener) -> None:
    panel = opened()
    panel.begin(*map(card, range(64)))
    panel.page.locator("[role=option][tabindex='0']").focus()
    style = "getComputedStyle(document.querySelector('.xn-tiles'))"
    columns = panel.page.evaluate(f"{style}.gridTemplateColumns.split(' ').length")
    for key, rank in {
        "ArrowRight": 1,
        "ArrowDown": 1 + columns,
        "End": 63,
        "ArrowUp": 63 - columns,
    }.items():
        panel.page.keyboard.press(key)
        expect(option(panel, rank)).to_be_focused()


# ------------------------------------------------------------------------------ figures


def loss(*lines: Sequence[float], name: str = "loss") -> tuple[Series, ...]:
    """A series with one line per rank; values are at steps 0, 1, …"""
    figure = Figure(limit=400)
    for rank, values in enumerate(lines):
        for step, value in enumerate(values):
            figure.add(rank, step, value)
    return (figure.series(name),)


def drawn(panel: Panel) -> dict[str, list[tuple[float, float | None]]]:
    """The contents of the chart "loss": points of each line by name, and the axis labels
    ("across", "up"), each with its position in the plot in pixels."""
    panel.settle()
    return dict(
        panel.page.evaluate("""() => {
            const { charts } = document.querySelector('.xn-panel').xnView.parts.figures;
            const { lines, uplot } = charts.get('loss');
            const [x, ...values] = uplot.data;
            const line = (ys) => x.map((at, i) => [at, ys[i]]).filter(([, y]) => y !== undefined);
            const axis = ({ scale, _show, _splits, _values }) => {
                const all = _values?.map((text, i) => [text, uplot.valToPos(_splits[i], scale)]);
                return _show ? all.filter(([text]) => text) : [];
            };
            const [across, up] = uplot.axes.map(axis);
            const shown = Object.fromEntries(lines.map(({ name }, i) => [name, line(values[i])]));
            return { ...shown, across, up };
        }""")
    )


def pieces(panel: Panel, name: str) -> list[list[tuple[float, float]]]:
    """The points of a line in the chart "loss", split at gaps."""
    found: list[list[tuple[float, float]]] = [[]]
    for x, y in drawn(panel)[name]:
        if y is not None:
            found[-1].append((x, y))
        elif found[-1]:
            found.append([])
    return [[tuple(point) for point in piece] for piece in found if piece]


def test_figure_shows_line_and_last_value_of_each_of_two_ranks(panel: Panel) -> None:
    panel.tell(series=loss([3, 2, 1], [4, math.nan, 2.5]))
    shown = panel.page.locator("[data-figure=loss]")
    expect(shown.locator("[data-legend='1']")).to_have_text("rank 12.5")
    assert pieces(panel, "rank 0") == [[(0, 3), (1, 2), (2, 1)]]
    assert pieces(panel, "rank 1") == [[(0, 4)], [(2, 2.5)]]
    panel.tell(series=loss([3, 2, 1, 0.5], [4, math.nan, 2.5]))
    expect(shown.locator("[data-legend='0']")).to_have_text("rank 00.5")
    assert pieces(panel, "rank 0") == [[(0, 3), (1, 2), (2, 1), (3, 0.5)]]


def test_page_formats_numbers_like_kernel(panel: Panel) -> None:
    values = [sign * 1.234567 * 10.0**power for power in range(-12, 15) for sign in (1, -1)]
    values += [12345.678, 0, 1, -250, 0.0005, 3.26e-4, 1e9, 2_200_000_000]
    panel.tell(series=loss(values))
    told = panel.page.evaluate("""() => {
        const { charts } = document.querySelector('.xn-panel').xnView.parts.figures;
        const { uplot, legend } = charts.get('loss');
        return uplot.data[0].map((x) => {
            uplot.setCursor({ left: uplot.valToPos(x, 'x'), top: 10 });
            return legend.querySelector('b').textContent;
        });
    }""")
    assert told == [in_words(value) for value in values]
    assert in_words(12345.678) == "12,346"
    assert in_words(math.inf) == "inf"


def test_nonfinite_values_are_named_and_marked(panel: Panel) -> None:
    panel.tell(series=loss([1, math.nan], [2, -math.inf]))
    shown = panel.page.locator("[data-figure=loss]")
    expect(shown.locator("[data-legend='0'] b")).to_have_text("NaN")
    expect(shown.locator("[data-legend='1'] b")).to_have_text("-inf")
    expect(shown.locator("figcaption")).to_contain_text("NaN since step 1 (rank 0)")
    expect(shown.locator(".xn-odd")).to_have_count(1)
    panel.tell(series=loss([1, *[math.nan] * 2, 2, *[math.inf] * 2], [2, 3]))
    expect(shown.locator(".xn-odd")).to_have_count(2)  # one per change to a nonfinite value
    mark = shown.locator(".xn-odd").last.evaluate("n => n.offsetLeft")
    assert mark == pytest.approx(dict(drawn(panel)["across"])["4"], abs=1)
    panel.tell(series=loss([math.nan], [math.nan, math.inf]))
    assert axis(panel) == []


def test_many_ranks_show_mean_range_and_line_of_selected_rank(opened: Opener) -> None:
    panel = opened()
    panel.begin(*map(card, range(40)), series=loss(*([1, rank] for rank in range(40))))
    shown = panel.page.locator("[data-figure=loss]")
    expect(shown.locator("figcaption")).to_have_text("loss mean and range")
    assert pieces(panel, "max") == [[(0, 1), (1, 39)]]
    assert pieces(panel, "min") == [[(0, 1), (1, 0)]]
    assert pieces(panel, "mean") == [[(0, 1), (1, 19.5)]]
    expect(shown.locator("[data-legend]")).to_have_text(["max39", "min0", "mean19.5"])
    panel.choose(30)
    expect(shown.locator("[data-legend]").last).to_have_text("rank 3030")
    assert pieces(panel, "rank 30") == [[(0, 1), (1, 30)]]
    panel.choose(30)
    expect(shown.locator("[data-legend]")).to_have_count(3)


def test_mean_has_gap_where_set_of_ranks_changes(opened: Opener) -> None:
    """Some cells of live ranks run on only a few of them."""
    panel = opened()
    (series,) = loss(*([rank] * 60 for rank in range(4)))
    for rank in (0, 3):
        del series.lines[rank][20:40]
    panel.begin(*map(card, range(4)), series=(series,))
    assert {y for piece in pieces(panel, "mean") for _, y in piece} == {1.5}
    ends = [(piece[0][0], piece[-1][0]) for piece in pieces(panel, "mean")]
    assert ends == [(0, 19), (20, 39), (40, 59)]


INK = """() => {
    const canvas = document.querySelector('[data-figure=loss] canvas');
    const { data } = canvas.getContext('2d').getImageData(45, 0, canvas.width - 45, 80);
    const inks = new Map();
    for (let i = 0; i < data.length; i += 4) {
        const ink = data.slice(i, i + 4).join();
        if (data[i + 3] > 200) inks.set(ink, (inks.get(ink) ?? 0) + 1);
    }
    return Math.max(0, ...inks.values());
}"""


@pytest.mark.parametrize("ranks", [1, 3])
def test_single_point_is_a_dot(opened: Opener, ranks: int) -> None:
    panel = opened()
    panel.begin(*map(card, range(ranks)), series=loss(*([rank] for rank in range(ranks))))
    assert 4 <= panel.page.evaluate(INK) <= 30
    panel.tell(series=loss(*[[math.nan]] * ranks))
    assert panel.page.evaluate(INK) < 4


PICTURES = "[...document.querySelectorAll('.xn-plot canvas')].map(one => one.toDataURL())"
#: Changes the theme while the charts have no size, which happens in JupyterLab.
HIDDEN = """async () => {
    const view = document.querySelector('.xn-panel').xnView, figures = view.parts.figures.node;
    document.body.style.background = '#111';
    figures.style.display = 'none';
    view.tick();
    while (view.dirty.size) await new Promise(requestAnimationFrame);
    view.parts.figures.resized.disconnect(); // the room is back before anybody has seen it
    figures.style.display = '';
}"""


@pytest.mark.parametrize(
    "theme",
    [
        "() => void (document.body.style.background = '#111')",
        "() => document.body.style.setProperty('--jp-ui-font-color1', '#400')",  # still light
        HIDDEN,
    ],
    ids=["dark", "high contrast", "hidden"],
)
def test_theme_change_redraws_all_charts(panel: Panel, theme: str) -> None:
    panel.tell(series=tuple(one for name in "abc" for one in loss(range(99), name=name)))
    panel.settle()
    before = panel.page.evaluate(PICTURES)
    panel.page.evaluate(theme)
    panel.page.wait_for_function(
        f"before => {PICTURES}.every((picture, i) => picture !== before[i])",
        arg=before,
        timeout=10_000,
    )
    assert len(before) == 3


def test_first_frame_shows_no_unknown_facts(opened: Opener) -> None:
    panel = opened()
    head = panel.page.locator(".xn-sub")
    expect(head).to_be_empty()
    panel.begin(cell="")
    expect(head).not_to_contain_text(re.compile("run-1|rank"))


def test_late_messages_show_how_far_page_is_behind(panel: Panel) -> None:
    said = panel.page.locator(".xn-say")
    expect(said).to_be_empty()
    panel.give({**panel.news(), "now": time.time() - 90})
    expect(said).to_contain_text(re.compile(r"This page is 1 min (29|30) s behind"))
    expect(panel.page.locator(".xn-sub")).not_to_contain_text("1 min")  # the elapsed time
    panel.tell()
    expect(said).to_be_empty()


def test_pointer_reads_values_of_figure(panel: Panel) -> None:
    panel.tell(series=loss(range(11), range(5, 16), range(4, 15)))
    shown = panel.page.locator("[data-figure=loss]")
    shown.locator(".u-over").hover(position={"x": 3, "y": 50})
    expect(shown.locator(".xn-at")).to_have_text("step 0")
    expect(shown.locator("[data-legend]")).to_have_text(["max5", "min0", "mean3"])
    panel.page.mouse.move(1, 1)
    expect(shown.locator(".xn-at")).to_have_text("step 10")
    expect(shown.locator("[data-legend]")).to_have_text(["max15", "min10", "mean13"])


def test_legend_marks_last_values_from_different_steps(panel: Panel) -> None:
    panel.tell(series=loss(range(11), range(5)))
    shown = panel.page.locator("[data-figure=loss]")
    expect(shown.locator(".xn-at")).to_have_text("last of each")
    expect(shown.locator("[data-legend]")).to_have_text(["rank 010", "rank 14"])
    panel.tell(series=loss(range(11), range(11)))
    expect(shown.locator(".xn-at")).to_have_text("step 10")


def test_pointer_near_gap_reads_an_existing_step(panel: Panel) -> None:
    panel.tell(series=loss([1, 2, 3], [1, math.nan, 3], [1, 2, 3]))  # rank 1 has a gap
    told = panel.page.evaluate("""() => {
        const { charts } = document.querySelector('.xn-panel').xnView.parts.figures;
        const { uplot, legend } = charts.get('loss');
        return Array.from({ length: 40 }, (_, n) => {
            uplot.setCursor({ left: uplot.valToPos(n / 20, 'x'), top: 10 });
            return legend.querySelector('.xn-at').textContent;
        });
    }""")
    assert set(told) == {"step 0", "step 1 · of 2 ranks", "step 2"}


def test_legend_counts_ranks_when_some_have_no_value(panel: Panel) -> None:
    panel.tell(series=loss([1, 2, 3], [1, 2, 3], [1, 2, 3, 4, 5]))
    shown = panel.page.locator("[data-figure=loss]")
    expect(shown.locator(".xn-at")).to_have_text("step 4 · of 1 rank")
    shown.locator(".u-over").hover(position={"x": 3, "y": 50})
    expect(shown.locator(".xn-at")).to_have_text("step 0")


def test_drag_zooms_chart_until_double_click(opened: Opener) -> None:
    panel = opened()
    lines = [[1 + step % 7 + rank for step in range(300)] for rank in range(3)]
    for step in (5, 160):  # one outside the zoomed part, one inside
        lines[1][step] = math.nan
    panel.begin(*map(card, range(3)), series=loss(*lines))
    shown = panel.page.locator("[data-figure=loss]")
    box = shown.locator(".u-over").bounding_box()
    assert box is not None
    middle, y = box["x"] + box["width"] / 2, box["y"] + 20

    def across() -> list[float]:
        return [float(text) for text, _ in drawn(panel)["across"]]

    def place_of(step: int) -> float:
        chart = "document.querySelector('.xn-panel').xnView.parts.figures.charts.get('loss')"
        return float(panel.page.evaluate(f"{chart}.uplot.valToPos({step}, 'x')"))

    panel.page.mouse.move(middle, y)
    panel.page.mouse.down()
    panel.page.mouse.move(middle + box["width"] / 10, y)
    panel.page.mouse.up()
    expect(shown.locator(".xn-at")).to_contain_text("zoomed")
    assert min(across()) >= 149 and max(across()) <= 181
    mark = shown.locator(".xn-odd")
    expect(mark).to_have_count(1)
    assert mark.evaluate("n => n.offsetLeft") == pytest.approx(place_of(160), abs=1)
    panel.tell(series=loss(*([*line, 1] for line in lines)))  # the zoom survives updates
    assert min(across()) >= 149 and max(across()) <= 181
    panel.page.get_by_role("button", name="log").click()  # and a change of the axis
    panel.page.mouse.move(1, 1)
    assert min(across()) >= 149 and max(across()) <= 181
    expect(shown.locator(".xn-at")).to_have_text(re.compile("zoomed · step 1[78]\\d"))
    expect(mark).to_have_count(1)
    assert mark.evaluate("n => n.offsetLeft") == pytest.approx(place_of(160), abs=1)
    panel.page.mouse.dblclick(middle, y)
    panel.page.mouse.move(1, 1)
    expect(shown.locator(".xn-at")).to_have_text("step 300")
    assert (min(across()), max(across())) == (0, 300)
    panel.page.mouse.click(middle, y)  # a click is not a drag
    panel.page.mouse.move(1, 1)
    expect(shown.locator(".xn-at")).to_have_text("step 300")


def test_line_with_restarted_steps_is_drawn_in_step_order(panel: Panel) -> None:
    panel.tell(series=(Series("loss", {0: [(0, 1), (1, 2), (2, 3), (1, 5)]}),))
    assert pieces(panel, "rank 0") == [[(0, 1), (1, 5), (2, 3)]]


def axis(panel: Panel) -> list[str]:
    """The labels on the y axis of the chart "loss", from bottom to top."""
    return [str(label) for label, _ in drawn(panel)["up"]]


def test_ticks_are_whole_numbers_for_whole_steps(panel: Panel) -> None:
    def across() -> list[str]:
        return [str(label) for label, _ in drawn(panel)["across"]]

    for values, steps in (((3, 2, 1), ["0", "1", "2"]), ((3, 2), ["0", "1"]), ((3,), ["0"])):
        panel.tell(series=loss(values))
        assert across() == steps
    panel.tell(series=(Series("loss", {0: [(0.5, 3), (1.5, 2)]}),))
    assert len(across()) >= 3


def test_axis_has_at_least_three_labels(panel: Panel) -> None:
    for values in (0.9, 1.1), (2.2, 0.2), (1, 1), (0, 1e-7), (-5, 1e6):
        panel.tell(series=loss(values))
        assert len(set(axis(panel))) >= 3, values


def test_axis_of_a_single_value_is_near_it(panel: Panel) -> None:
    panel.tell(series=loss((0.8594,)))
    assert all(0.75 < float(label) < 0.95 for label in axis(panel) if label), axis(panel)


#: The free space beside the longest label on the y axis, in pixels.
ROOM = """() => {
    const { charts } = document.querySelector('.xn-panel').xnView.parts.figures;
    const { ctx, axes } = charts.get('loss').uplot;
    const widths = axes[1]._values.map((text) => ctx.measureText(text).width);
    return axes[1]._size - 4 - Math.max(...widths);
}"""


def test_axis_labels_are_distinct_and_fit(panel: Panel) -> None:
    narrow = (1.0004, 1.0007), (273.15, 273.1502), (0.99900, 0.99907), (123456.1, 123456.8)
    narrow += (123_456_000_000, 123_466_000_000), (-12345.6783, -12345.6781), (1.2341e-5, 1.2349e-5)
    for values in (
        (1e9, 1.03e9),
        (0, 3e-8),
        (483.10, 483.16),
        (0, 1e30),
        (0, 2e34),
        (-1e9, 1.5),
        *narrow,
    ):
        panel.tell(series=loss(values))
        assert len(set(axis(panel))) == len(axis(panel)) >= 3, values
        assert 0 <= panel.page.evaluate(ROOM) < 40, values


LOGARITHMIC = (
    (3.4, 0.3),
    (0.9, 0.93),
    (1e-9, 1e4),
    (7, 7),
    (2.31, 2.47),
    (5e6, 2e7),
    (1e-20, 1e20),
    (12, 480),
)


def test_logarithmic_axis_has_round_labels_at_correct_positions(panel: Panel) -> None:
    panel.tell(series=loss(LOGARITHMIC[0]))
    button(panel, "log").click()
    for values in LOGARITHMIC:
        panel.tell(series=loss(values))
        check_logarithmic_labels(panel)


def check_logarithmic_labels(panel: Panel) -> None:
    labels = [float(text.replace(",", "")) for text in axis(panel)]
    places = [place for _, place in drawn(panel)["up"] if place is not None]
    assert 3 <= len(set(labels)) == len(labels) == len(places) <= 7
    assert all(abs(after - before) >= 12 for before, after in pairwise(places))
    powers = [math.log10(label) for label in labels]
    a_decade = (places[-1] - places[0]) / (powers[-1] - powers[0])
    for label, power, place in zip(labels, powers, places, strict=True):
        assert abs(places[0] + a_decade * (power - powers[0]) - place) <= 1
        assert len(f"{label:e}".rstrip("0").partition("e")[0].rstrip("0")) <= 4


def test_logarithmic_axis_reports_omitted_values(panel: Panel) -> None:
    panel.tell(series=loss([1, 0, -3, 10]))
    told = panel.page.locator("[data-figure=loss] .xn-at")
    expect(told).to_have_text("step 3")
    button(panel, "log").click()
    expect(told).to_have_text("values ≤ 0 not drawn · step 3")
    expect(panel.page.locator("[data-figure=loss] [data-legend='0']")).to_have_text("rank 010")


def test_mean_on_logarithmic_axis_is_arithmetic(panel: Panel) -> None:
    panel.tell(series=loss([1, 1], [1, 10], [1, 100]))
    button(panel, "log").click()
    assert pieces(panel, "mean") == [[(0, 1), (1, 37)]]


def test_log_button_is_hidden_without_figures(panel: Panel) -> None:
    panel.tell(card(0, memory=100 << 20))
    expect(button(panel, "log")).to_be_hidden()
    panel.tell(series=loss([1, 2]))
    expect(button(panel, "log")).to_be_visible()


# ------------------------------------------------------------------------------ output


def test_output_of_all_ranks_is_merged_and_marks_stderr(panel: Panel) -> None:
    panel.tell(lines=[block(2, "a"), block(0, "b", stream="err"), block(None, "c")])
    rows = panel.page.locator(".xn-row")
    expect(rows.locator(".xn-tag")).to_have_text(["2", "0", "cell"])
    expect(rows.locator(".xn-err")).to_have_text(["err"])
    expect(rows.nth(1)).to_have_attribute("data-stream", "err")


def tags(panel: Panel) -> list[str]:
    return list(panel.page.locator(".xn-row .xn-tag").all_inner_texts())


def test_equal_lines_from_several_ranks_are_merged(panel: Panel) -> None:
    panel.tell(lines=[block(rank, "warning", stream="err") for rank in (0, 1, 3)])
    panel.tell(lines=[block(2, "warning", stream="err"), block(2, "own")])
    assert panel.rows() == ["warning", "own"]
    assert tags(panel) == ["0–3", "2"]


def test_stderr_lines_stay_after_earlier_stdout_of_same_rank(panel: Panel) -> None:
    panel.tell(lines=[block(0, "a 0"), block(0, "warning", stream="err")])
    panel.tell(lines=[block(1, "a 1"), block(1, "warning", stream="err")])
    assert panel.rows() == ["a 0", "warning", "a 1", "warning"]


def test_merging_lines_preserves_order_within_each_rank(panel: Panel) -> None:
    panel.tell(lines=[block(0, "a", "b"), block(1, "b", "a"), block(2, "a", "b")])
    assert panel.rows() == ["a", "b", "a", "b"]
    assert tags(panel) == ["0", "0, 1", "1, 2", "2"]
    panel.tell(lines=[block(2, "b")])  # the same rank repeats a line
    assert panel.rows() == ["a", "b", "a", "b", "b"]
    select_rank(panel, 1)
    assert panel.rows() == ["b", "a"]


def test_equal_lines_in_stdout_and_stderr_are_not_merged(panel: Panel) -> None:
    panel.tell(lines=[block(0, "a"), block(1, "a", stream="err")])
    assert panel.rows() == ["a", "a"]


def test_lane_updates_do_not_leak_documents(panel: Panel) -> None:
    """A page with many documents becomes slow."""
    client = panel.page.context.new_cdp_session(panel.page)

    def documents() -> int:
        return int(client.send("Memory.getDOMCounters")["documents"])

    panel.tell(*(card(rank, lane=lane([1])) for rank in range(4)))
    before = documents()
    for n in range(60):
        panel.tell(*(card(rank, lane=lane(*[[1]] * n)) for rank in range(4)))
    assert documents() - before < 20
    expect(panel.page.locator("td.xn-lane svg")).to_have_count(4)
    expect(panel.page.locator("td.xn-lane").first).to_have_attribute("title", re.compile("59 s"))


def test_empty_lines_have_full_height(panel: Panel) -> None:
    panel.tell(lines=[block(0, "above", "", "below")])
    option(panel, 0).click()
    heights = panel.page.eval_on_selector_all(".xn-row", "all => all.map(n => n.offsetHeight)")
    assert len(heights) == 3 and len(set(heights)) == 1


def test_rows_fit_narrow_panel(panel: Panel) -> None:
    panel.tell(
        *(card(rank, step=0.1, waits=0.5, memory=5 << 27) for rank in range(4)),
        series=(Series("loss", {0: [(0, 0.006944)]}),),
    )
    waits = card(0, "waiting", detail="in rendezvous, for ranks 2, 5", since=time.time())
    panel.tell(replace(waits, lane=lane([0, 1])))
    for wide in 330, 460, 560, 662, 720, 940:
        panel.page.locator(".xn-panel").evaluate("(n, w) => (n.style.width = `${w}px`)", wide)
        panel.settle()
        edge = panel.page.locator(".xn-grid").evaluate("n => n.getBoundingClientRect().right")
        key, drawn = panel.page.locator(".xn-key"), panel.page.locator("td.xn-lane svg")
        assert key.is_visible() == drawn.is_visible() == (wide > 760), wide
        within = "(all, edge) => all.every(n => n.getBoundingClientRect().right <= edge + 1)"
        assert panel.page.eval_on_selector_all(".xn-grid :is(th, td)", within, edge)
        for name in ("state", "metric") if wide > 500 else ("state",):
            one = cell(panel, 0, name)
            assert one.evaluate("n => n.scrollWidth <= n.clientWidth + 1"), (wide, name)
    expect(cell(panel, 0, "at")).to_have_text("line 7 · in rendezvous, for ranks 2, 5")


def test_eight_ranks_two_charts_and_full_log_fit_630_pixels(opened: Opener) -> None:
    panel = opened()
    panel.page.set_viewport_size({"width": 940 + 24, "height": 900})  # including the page's padding
    slots = lane(*[[0.1, 0.6, 0.2, 0.1]] * 60)
    sentence = "Rank 2 is the slowest: 31 ms a step more; the others wait for it 28 % of the time"
    panel.begin(
        *(card(r, step=0.08, waits=0.28, memory=1 << 29, steps=412, lane=slots) for r in range(8)),
        simulated=True,
        diagnosis=warned(sentence, 2),
        bar=Bar("step", 412, 1600, 12, 110, on="every rank"),
        series=(*loss(*[[3, 2, 1]] * 8), *loss(*[[3, 2, 1]] * 8, name="accuracy")),
        lines=[block(r, *(f"step {n} of {r}" for n in range(50))) for r in range(8)],
    )
    box = panel.page.locator(".xn-panel").bounding_box()
    assert box is not None
    assert box["width"] == 940
    assert box["height"] <= 630
    for name in ("Figures", "Output"):
        expect(panel.page.get_by_role("region", name=name)).to_be_visible()
    button(panel, "Figures").click()  # the log gets the free space
    log = panel.page.locator(".xn-log").bounding_box()
    assert log is not None
    assert log["height"] > 200
    button(panel, "Figures").click()  # the page remembers folded sections


def test_log_grows_with_lines_up_to_maximum_height(panel: Panel) -> None:
    log = panel.page.locator(".xn-log")

    def height() -> float:
        box = log.bounding_box()
        assert box is not None
        return float(box["height"])

    panel.tell(lines=[block(0, "a")])
    one = height()
    panel.tell(lines=[block(0, "b", "c")])
    assert height() > one + 30
    panel.tell(lines=[block(0, *map(str, range(300)))])
    full = height()
    assert full < 300
    panel.tell(lines=[block(0, *map(str, range(300)))])
    assert height() == full


def test_folded_section_stays_folded_in_next_panel(opened: Opener) -> None:
    panel = opened()
    panel.begin(card(0), lines=[block(0, "a")])
    fold = panel.page.get_by_role("button", name="Output", exact=True)
    expect(fold).to_have_attribute("aria-expanded", "true")
    fold.click()
    expect(panel.page.locator(".xn-log")).to_be_hidden()
    again = opened()
    again.begin(card(0), lines=[block(0, "a")])
    expect(again.page.locator(".xn-log")).to_be_hidden()
    again.page.get_by_role("button", name="Output", exact=True).click()
    expect(again.page.locator(".xn-log")).to_be_visible()
    assert again.page.evaluate("localStorage.getItem('xla_nb.folded.output')") == "false"


def test_stream_selection_filters_lines(panel: Panel) -> None:
    panel.tell(lines=[block(2, "a"), block(0, "b", stream="err")])
    panel.page.get_by_label("Stream").select_option("err")
    panel.settle()
    assert panel.rows() == ["b"]


def test_filter_keeps_and_counts_matching_lines(panel: Panel) -> None:
    panel.tell(lines=[block(0, "Loss 1", "other", "\x1b[31mlo\x1b[0mss 2")])
    panel.page.get_by_label("Filter output").fill("LOSS")
    panel.settle()
    assert panel.rows() == ["Loss 1", "loss 2"]
    expect(panel.page.locator(".xn-matches")).to_have_text("2 hits")
    panel.tell(lines=[block(1, "loss 3", "no")])
    assert panel.rows() == ["Loss 1", "loss 2", "loss 3"]
    expect(panel.page.locator(".xn-matches")).to_have_text("3 hits")
    panel.page.keyboard.press("Escape")
    panel.settle()
    assert len(panel.rows()) == 5


def test_scrolling_up_pauses_output_until_follow(panel: Panel) -> None:
    log = panel.page.locator(".xn-log")
    panel.tell(lines=[block(0, *map(str, range(300)))])
    assert panel.rows()[-1] == "299"
    scroll(panel, 200)
    expect(log).to_have_attribute("data-follow", "false")
    panel.settle()
    assert len(panel.rows()) == 300  # including lines kept outside the page
    seen = log.evaluate("log => log.scrollTop")
    panel.tell(lines=[block(1, "new", "newer")])
    assert log.evaluate("log => log.scrollTop") == seen
    assert "new" not in panel.rows()
    button(panel, "Follow · 2 new").click()
    expect(log).to_have_attribute("data-follow", "true")
    panel.settle()
    assert panel.rows()[-1] == "newer"
    assert log.evaluate("log => log.scrollHeight - log.scrollTop - log.clientHeight") <= 1


def test_follow_button_pauses_and_resumes_output(panel: Panel) -> None:
    panel.tell(lines=[block(0, "a")])
    follow = button(panel, "Follow")
    expect(follow).to_have_attribute("aria-pressed", "true")
    follow.click()
    expect(follow).to_have_attribute("aria-pressed", "false")
    panel.tell(lines=[block(0, "b")])
    assert panel.rows() == ["a"]
    button(panel, "Follow · 1 new").click()
    panel.settle()
    assert panel.rows() == ["a", "b"]


def test_terminal_styles_are_shown(panel: Panel) -> None:
    text = (
        "\x1b[1;31mbold red\x1b[22;39m plain \x1b[38;5;208morange\x1b[0m"
        "\x1b[48;2;1;2;3m deep \x1b[7minverse\x1b[0m \x1b[3;4;9mall\x1b[0m"
    )
    panel.tell(lines=[block(0, text)])
    words = panel.page.locator(".xn-text")
    expect(words).to_have_text("bold red plain orange deep inverse all")
    spans = words.locator("span")
    expect(spans.nth(0)).to_have_attribute("style", "background:#dc4c4440;font-weight:bold")
    expect(spans.nth(1)).to_have_css("background-color", "rgba(255, 135, 0, 0.25)")
    expect(spans.nth(2)).to_have_css("background-color", "rgba(1, 2, 3, 0.25)")
    expect(spans.nth(3)).to_have_css("background-color", "rgba(1, 2, 3, 0.25)")
    expect(spans.nth(4)).to_have_css("text-decoration-line", "underline line-through")


HOSTILE = (
    "<script>executed = 1</script>",
    "</div></body><img src=/x onerror='executed = 1'>",
    "javascript:executed=1 <svg onload=executed=1>",
    "\u202egnp.exe\u2066",
    "nul \0 bell \x07 \x1b]8;;http://x\x07link",
    "x" * 100_000,
)


def test_hostile_text_is_shown_as_text(panel: Panel) -> None:
    for text in HOSTILE:
        own = dict.fromkeys(("place", "detail", "line", "device", "host"), text)
        bars = (Bar(text, 1, 2),)
        hang = StackGroup((0,), text, text, text)
        panel.tell(
            card(0, bars=bars, fallbacks={text: 1}, **own),
            **dict.fromkeys(("cell", "headline", "record", "stopping"), text),
            hosts=(text, "w"),
            lost={text: text},
            bar=bars[0],
            notices=(text,),
            hang=HangReported(verdict=text, ranks=(), groups=(hang,), at=1.0),
            troubles=(trouble(0, title=text, place=text, text=text, others=(text,)),),
            series=loss([1, 2], name=text),
            lines=[block(0, text)],
        )
        expect(panel.page.locator(".xn-headline")).not_to_be_empty()
    panel.choose(0)
    button(panel, "Stacks").click()
    answer = {"type": "stacks", "request": panel.wait_sent("stacks")["request"]}
    panel.give({**answer, "html": html.stacks([StackGroup((0,), t, t, t) for t in HOSTILE])})
    button(panel, "Close").click()
    panel.settle()
    rows = panel.rows()
    assert rows[0] == HOSTILE[0]
    assert rows[3] == "⟨U+202E⟩gnp.exe⟨U+2066⟩"
    assert rows[4] == "nul ␀ bell ␇ link"
    assert len(rows[5]) < 5_000
    assert panel.page.evaluate("executed") == 0
    assert panel.page.locator(".xn-panel").locator("script, img, svg[onload]").count() == 0


def test_skipped_lines_are_counted(panel: Panel) -> None:
    panel.tell(lines=[block(3, "after", skipped=4210)])
    assert panel.rows() == ["… 4,210 lines not shown, in rank-3.out", "after"]


def test_whole_message_for_another_page_keeps_lines(panel: Panel) -> None:
    panel.tell(lines=[block(0, "start")])
    panel.begin(card(0), before=[block(0, "art")])  # requested by another page
    assert panel.rows() == ["start"]


def test_missed_messages_replace_lines(opened: Opener) -> None:
    panel = opened()
    panel.begin(card(0), lines=[block(0, "start")])
    panel.seq += 3
    panel.tell(lines=[block(0, "end")])
    panel.wait_sent("whole", 2)
    before = [block(0, "start", "missed", "end")]
    panel.begin(card(0), before=before, lines=[block(0, "more")])
    assert panel.rows() == ["start", "missed", "end", "more"]


def test_late_page_shows_each_line_once(opened: Opener) -> None:
    panel = opened()
    panel.seq = 3
    panel.tell(card(0), lines=[block(0, "long", "the end")])  # before the reply
    before = [block(0, "start", "long", "the end")]  # the most one read returns
    panel.begin(card(0), before=before, lines=[block(0, "more")])
    assert panel.rows() == ["start", "long", "the end", "more"]


def test_copied_lines_have_no_styles(panel: Panel) -> None:
    panel.page.evaluate(
        "Object.defineProperty(navigator, 'clipboard',"
        " {value: {writeText: async text => { copied = text }}})"
    )
    panel.tell(lines=[block(0, "\x1b[31ma\x1b[0m"), block(1, "b")])
    button(panel, "Copy output").click()
    assert panel.page.evaluate("copied") == "[0] a\n[1] b"
    button(panel, "Copy path").click()
    assert panel.page.evaluate("copied") == RUN.record


def test_copy_works_without_clipboard_permission(panel: Panel) -> None:
    panel.page.evaluate(
        "Object.defineProperty(navigator, 'clipboard', {value: undefined});"
        "document.addEventListener('copy', event => {"
        " copied = event.clipboardData.getData('text/plain') })"
    )
    panel.tell(lines=[block(0, "a")])
    button(panel, "Copy output").click()
    panel.page.wait_for_function("copied === '[0] a'")


def test_copy_path_uses_selected_rank_and_stream(panel: Panel) -> None:
    panel.tell(lines=[block(2, "one")])
    select_rank(panel, 2)
    panel.page.get_by_label("Stream").select_option("err")
    told = f"{RUN.record}/rank-2.err"
    expect(button(panel, "Copy path")).to_have_attribute("title", told)


def select_rank(panel: Panel, rank: int) -> None:
    option(panel, rank).click()
    expect(panel.page.get_by_role("heading", name=f"Output of rank {rank}")).to_be_visible()
    panel.settle()


def written(panel: Panel, *ranks: int) -> None:
    """Send the last 50 of 8,000 lines that each of these ranks printed."""
    lines = [f"line {n}" for n in range(7950, 8000)]
    panel.tell(lines=[block(rank, *lines, skipped=7950) for rank in ranks])


def fetched(panel: Panel, numbers: range) -> None:
    """Reply to the request for earlier lines."""
    lines = [("out", f"line {n}") for n in numbers]
    panel.give({**panel.wait_sent("earlier"), "lines": lines})


def test_fetching_earlier_lines_keeps_scroll_position(panel: Panel) -> None:
    written(panel, 0)
    select_rank(panel, 0)
    assert panel.rows()[0] == "… 7,950 lines not shown, in rank-0.out"
    button(panel, "Earlier output").click()
    assert panel.wait_sent("earlier")["rank"] == 0
    place = "n => n.getBoundingClientRect().top"
    row = panel.page.locator(".xn-row", has_text="line 7990")
    before = row.evaluate(place)
    fetched(panel, range(8000))
    assert panel.rows() == [f"line {n}" for n in range(8000)]
    assert abs(row.evaluate(place) - before) <= 1
    expect(panel.page.locator(".xn-top")).to_contain_text("This is the start of the output.")
    expect(button(panel, "Earlier output")).to_be_hidden()


def test_earlier_lines_that_were_not_fetched_are_counted(panel: Panel) -> None:
    written(panel, 0)
    select_rank(panel, 0)
    button(panel, "Earlier output").click()
    fetched(panel, range(6950, 8000))
    assert panel.rows() == [f"line {n}" for n in range(6950, 8000)]
    told = "1,050 of 8,000 lines. See the log file for all."
    expect(panel.page.locator(".xn-top")).to_contain_text(told)


def test_filter_shows_how_many_lines_it_searched(panel: Panel) -> None:
    """Lines that were not sent may match too."""
    written(panel, 0)
    select_rank(panel, 0)
    panel.page.get_by_label("Filter output").fill("line 6951")
    expect(panel.page.locator(".xn-top")).to_contain_text("50 of 8,000 lines searched.")
    expect(panel.page.locator(".xn-matches")).to_have_text("0 hits")
    assert panel.rows() == ["… 7,950 lines not shown, in rank-0.out"]
    button(panel, "Earlier output").click()
    fetched(panel, range(6950, 8000))
    expect(panel.page.locator(".xn-matches")).to_have_text("1 hit")
    assert panel.rows() == ["line 6951"]
    panel.page.get_by_label("Filter output").fill("line 7000")  # fetched lines are kept
    expect(panel.page.locator(".xn-matches")).to_have_text("1 hit")


def test_output_of_all_ranks_shows_how_many_lines_are_loaded(panel: Panel) -> None:
    written(panel, 0, 1)
    scroll(panel, 40)
    expect(panel.page.locator(".xn-top")).to_contain_text("100 of 16,000 lines.")


def test_scrolling_to_top_fetches_earlier_lines(panel: Panel) -> None:
    written(panel, 0)
    select_rank(panel, 0)
    scroll(panel, 100)
    expect(panel.page.locator(".xn-log")).to_have_attribute("data-follow", "false")
    scroll(panel, 0)
    assert panel.wait_sent("earlier")["rank"] == 0


def test_missing_reply_to_earlier_output_is_reported(panel: Panel) -> None:
    written(panel, 0)
    select_rank(panel, 0)
    button(panel, "Earlier output").click()
    expect(panel.page.locator(".xn-top")).to_contain_text("No answer yet")
    fetched(panel, range(7000, 8000))
    assert panel.rows()[0] == "line 7000"


def test_reply_for_another_rank_is_ignored(panel: Panel) -> None:
    written(panel, 0, 1)
    select_rank(panel, 0)
    button(panel, "Earlier output").click()
    select_rank(panel, 1)
    fetched(panel, range(8000))
    assert len(panel.rows()) == 51


def test_earlier_output_button_appears_only_if_lines_are_missing(panel: Panel) -> None:
    panel.tell(lines=[block(0, "first", "second")])
    select_rank(panel, 0)
    expect(button(panel, "Earlier output")).to_be_hidden()
    panel.tell(lines=[block(0, "much later", skipped=8)])
    expect(button(panel, "Earlier output")).to_be_visible()
    select_rank(panel, 1)
    expect(button(panel, "Earlier output")).to_be_hidden()


@pytest.mark.parametrize("ranks", [8, 256])
def test_flood_of_output_keeps_page_bounded(opened: Opener, ranks: int) -> None:
    panel = opened()
    panel.begin(*map(card, range(ranks)))
    panel.page.evaluate(
        """async ([ranks, total]) => {
            const each = total / ranks / 40;
            for (let k = 0; k < 40; k++) {
                const lines = Array.from({length: ranks}, (_, rank) => ({
                    rank, stream: 'out', skipped: 0,
                    lines: Array.from({length: each}, (_, i) => `step ${k * each + i}`),
                }));
                give({type: 'news', seq: k + 2, whole: false, now: 0, lines});
                await new Promise(requestAnimationFrame);
            }
        }""",
        [ranks, 40 * 5120],
    )
    panel.settle()
    assert panel.held() <= 8_000
    assert len(panel.rows()) <= 1_000
    assert panel.rows()[-1] == f"step {40 * 5120 // ranks - 1}"


# ------------------------------------------------------------------------------ access


def full(panel: Panel) -> None:
    panel.tell(
        bar=Bar("epochs", 1, 2),
        troubles=(trouble(1, place="p", text="x"),),
        series=loss([1, 2]),
        lines=[block(0, "a", skipped=9)],
    )


def test_every_control_has_an_accessible_name(panel: Panel) -> None:
    full(panel)
    button(panel, "Stacks").click()
    nameless = panel.page.evaluate(
        """() => [...document.querySelectorAll(
            '.xn-panel :is(button, input, select, [role]:not([role=status]), section)')]
            .filter(node => node.checkVisibility()
                && !node.getAttribute('aria-label') && !node.textContent.trim())
            .map(node => node.outerHTML)"""
    )
    assert nameless == []
    for name in ("Errors and notes", "Stacks", "Figures", "Output"):
        expect(region(panel, name)).to_be_visible()
    expect(panel.page.get_by_role("log", name="Output")).to_have_attribute("aria-live", "off")


def test_only_the_diagnosis_is_announced(panel: Panel) -> None:
    speak_at_once(panel)
    full(panel)
    button(panel, "Stacks").click()
    button(panel, "Stop").click()
    panel.page.get_by_label("Filter output").fill("a")
    loud = panel.page.locator(
        ".xn-panel :is([role=status], [role=alert], [aria-live]:not([aria-live=off]))"
    )
    expect(loud).to_have_count(1)
    expect(loud).to_have_text("4 ranks run")


def test_diagnosis_is_announced_again_only_if_more_than_numbers_change(panel: Panel) -> None:
    def diagnose(sentence: str, *ranks: int) -> None:
        speak_at_once(panel)
        panel.tell(diagnosis=warned(sentence, *ranks))

    spoken = panel.page.locator(".xn-live")
    diagnose("3 ranks have been waiting 16 s for rank 2", 2)
    expect(spoken).to_have_text("3 ranks have been waiting 16 s for rank 2")
    diagnose("3 ranks have been waiting 17 s for rank 2", 2)
    expect(panel.page.locator(".xn-headline")).to_contain_text("17 s")
    expect(spoken).to_have_text("3 ranks have been waiting 16 s for rank 2")
    diagnose("3 ranks have been waiting 1 s for rank 1", 1)
    expect(spoken).to_have_text("3 ranks have been waiting 1 s for rank 1")


def test_screen_reader_finds_headings_and_lists(panel: Panel) -> None:
    full(panel)
    panel.choose(1)
    button(panel, "Stacks").click()
    panel.settle()
    headings = panel.page.locator(".xn-panel").get_by_role("heading").all_inner_texts()
    title, error, *rest = headings
    assert "4 ranks run" in title
    assert "rank 1" in error
    assert rest == ["4 ranks", "rank 1", "Where each rank is", "Figures", "Output of rank 1"]
    expect(panel.page.get_by_role("list", name="Ranks by phase")).to_be_visible()
    expect(panel.page.get_by_role("listbox", name="Ranks").get_by_role("option")).to_have_count(4)


@pytest.mark.parametrize("ranks", [4, 64])
def test_focused_controls_have_an_outline(opened: Opener, ranks: int) -> None:
    panel = opened()
    panel.begin(*map(card, range(ranks)))
    full(panel)
    unmarked = []
    panel.page.evaluate("document.body.prepend(document.createElement('button'));")
    panel.page.locator("body > button").focus()
    for _ in range(40):
        panel.page.keyboard.press("Tab")
        unmarked += panel.page.evaluate(
            """() => {
                const node = document.activeElement;
                const { outlineStyle, outlineWidth } = getComputedStyle(node);
                const seen = outlineStyle !== 'none' && parseFloat(outlineWidth) >= 2;
                return seen || !node.closest('.xn-panel') ? [] : [node.outerHTML];
            }"""
        )
    assert unmarked == []


def test_tab_key_reaches_every_control(panel: Panel) -> None:
    full(panel)
    select_rank(panel, 0)
    button(panel, "Stacks").click()
    reached = tabbed(panel.page)
    for name in ("Stacks", "Stop", "4 ranks"):
        assert name in reached
    for name in ("Stream", "Filter output", "Follow", "Copy output", "Output"):
        assert name in reached
    for name in ("Ask again", "Close stacks", "Earlier output", "Copy path", "log"):
        assert name in reached
    assert sum("running" in name for name in reached) == 1


def test_ranks_are_one_tab_stop(opened: Opener) -> None:
    panel = opened()
    panel.page.evaluate("document.body.className = 'jp-Notebook'")  # lines are links there
    names = ("loss", "accuracy", "lr")
    series = tuple(one for name in names for one in loss(*[[1, 2]] * 8, name=name))
    ranks = (card(rank, memory=1 << 29) for rank in range(8))
    panel.begin(*ranks, series=series, lines=[block(0, "one")])
    reached = tabbed(panel.page)
    assert reached == [
        *("Stacks", "Stop", "Cell In[3]", "8 ranks", "0● runningline 72512 MiB"),
        *("Figures", "log"),
        *("Output", "Stream", "Filter output", "Follow", "Copy path"),
        *("Copy output", "Output"),
    ]


def tabbed(page: Page) -> list[str]:
    """The names of the controls that the Tab key reaches before it leaves the page."""
    names: list[str] = []
    page.evaluate("document.body.prepend(document.createElement('button'));")
    page.locator("body > button").focus()
    for _ in range(60):
        page.keyboard.press("Tab")
        name = page.evaluate(
            "() => { const node = document.activeElement; return node === document.body ? null :"
            " node.getAttribute('aria-label') || node.textContent.trim(); }"
        )
        if name is None:
            break
        names.append(name)
    return names


#: Finds text with too little contrast (WCAG: 4.5 to 1) or below 12 pixels.
FAINT = """() => {
    const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
    const rgba = (colour) => {
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = colour;
        canvas.fillRect(0, 0, 1, 1);
        const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
        return [r, g, b, a / 255];
    };
    const over = ([r, g, b, a], under) => [r, g, b].map((v, i) => v * a + under[i] * (1 - a));
    const behind = (node) => {
        const layers = [];
        for (; node; node = node.parentElement)
            layers.push(rgba(getComputedStyle(node).backgroundColor));
        return layers.reduceRight((under, layer) => over(layer, under), [255, 255, 255]);
    };
    const linear = (v) => (v <= 10 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
    const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
    const bad = [];
    const root = document.querySelector('.xn-panel');
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const node = walker.currentNode.parentElement;
        if (!walker.currentNode.textContent.trim() || !node.checkVisibility()) continue;
        if (node.closest('style, option, .xn-live') || node.closest('button:disabled')) continue;
        const style = getComputedStyle(node);
        const ink = node.namespaceURI.includes('svg') ? style.fill : style.color;
        const ground = behind(node);
        const [a, b] = [light(over(rgba(ink), ground)), light(ground)];
        const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (contrast >= 4.5 && parseFloat(style.fontSize) >= 12) continue;
        bad.push([node.textContent, node.getAttribute('class'), contrast, style.fontSize].join());
    }
    return bad;
}"""
DARK_THEME = (
    ":root { --jp-layout-color0: #111; --jp-layout-color1: #212121; --jp-ui-font-color1: #fffd;"
    " --jp-ui-font-color2: #ffffffb3; --jp-content-font-color2: #ffffffb3 }"
)
LIGHT_THEME = (
    ":root { --jp-layout-color0: #fff; --jp-layout-color1: #fff; --jp-ui-font-color1: #000000de;"
    " --jp-ui-font-color2: #0000008a }"
)


@pytest.mark.parametrize("theme", [LIGHT_THEME, DARK_THEME], ids=["light", "dark"])
@pytest.mark.parametrize("ranks", [8, 64])
def test_all_text_is_large_and_has_enough_contrast(opened: Opener, theme: str, ranks: int) -> None:
    panel = opened(css=theme)
    phases: Any = ["running", "waiting", "compiling", *ENDED]
    every = {"step": 0.1, "waits": 0.2, "memory": 1 << 29, "detail": "in all_reduce, for rank 1"}
    every |= {"steps": 2, "fallbacks": {"aten::x": 1}, "compiles": 6, "line": "last"}
    panel.begin(
        *(card(r, phases[r % 8], lane=lane([0.2] * 5), **every) for r in range(ranks)),
        simulated=True,
        notices=("a notice",),
        diagnosis=warned("Rank 1 is slow", 1, 3),
        bar=Bar("steps", 1, 2, 1, 2),
        troubles=(trouble(3, place="line 3", text="Cell In[3], line 3\nx"),),
        series=loss(*([1, 2, rank] for rank in range(ranks))),
        lines=[block(0, "out"), block(1, "\x1b[31mred\x1b[32mgreen\x1b[90mgrey", stream="err")],
    )
    panel.choose(2)
    panel.settle()
    assert panel.page.evaluate(FAINT) == []
    panel.tell(diagnosis=warned("Rank 3 failed", 3, level="bad"), lost={"w": "gone"})
    assert panel.page.evaluate(FAINT) == []

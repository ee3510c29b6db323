"""The panel's page alone: what it shows of its messages, and what it sends.

There is no kernel and no JupyterLab: `harness.Panel` is the shipped page, and the test its kernel.
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
from xla_nb.views.facts import figure as in_words
from xla_nb.views.facts import going
from xla_nb.views.observer import Line
from xla_nb.views.rendering import html
from xla_nb.views.rendering.style import ENDED
from xla_nb.views.snapshot import Bar, Card, Diagnosis, Series

Opener = Callable[..., Panel]

ANOTHER_VIEW = "void mount(document.body.appendChild(document.createElement('div')))"
ACKNOWLEDGE = "void (answer = ({request}) => give({type: 'ack', request}))"


@pytest.fixture
def opened(chromium: BrowserContext, page: Page) -> Iterator[Opener]:
    """Opens panels; none of them may raise an error or request a file."""
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


#: As a person does, once the page has heard of its own scrolling to the end, a frame later.
SCROLL = """(log, to) => new Promise((done) => {
    const next = (then) => requestAnimationFrame(then);
    next(() => next(() => { log.scrollTop = to; done(); }));
})"""


def scroll(panel: Panel, to: int) -> None:
    panel.page.locator(".xn-log").evaluate(SCROLL, to)


def warned(sentence: str, *ranks: int, level: Any = "warning") -> Diagnosis:
    return Diagnosis(sentence, level, ranks)


# ------------------------------------------------------------------------------ the whole page


def test_a_new_page_asks_for_everything(opened: Opener) -> None:
    opened().wait_sent("whole")


def test_the_snapshot_below_a_panel_is_hidden_while_the_panel_is_there(panel: Panel) -> None:
    panel.page.evaluate(
        "document.body.insertAdjacentHTML('beforeend', '<p class=\"xn-saved-run-1\">own</p>"
        '<p class="xn-saved-run-12">another</p>\')'
    )
    expect(panel.page.get_by_text("own", exact=True)).to_be_hidden()
    expect(panel.page.get_by_text("another", exact=True)).to_be_visible()
    panel.page.evaluate("unmount()")
    expect(panel.page.get_by_text("own", exact=True)).to_be_visible()


def test_messages_before_the_first_view_are_kept(opened: Opener) -> None:
    panel = opened(seen=False)
    panel.begin(card(0, place="Cell In[3], line 77"))
    panel.page.evaluate("void mount(document.getElementById('here'))")
    expect(option(panel, 0)).to_contain_text("line 77")


def test_each_view_of_a_run_selects_its_own_rank(panel: Panel) -> None:
    panel.page.evaluate(ANOTHER_VIEW)
    panels = panel.page.locator(".xn-panel")
    panels.last.locator('[role=option][data-rank="2"]').click()
    expect(panels.last.locator("[aria-selected=true]")).to_have_attribute("data-rank", "2")
    expect(panels.first.locator("[aria-selected=true]")).to_have_count(0)


def test_closing_a_view_leaves_the_other_working(panel: Panel) -> None:
    panel.page.evaluate(ANOTHER_VIEW)
    panel.page.evaluate("unmount()")
    expect(panel.page.locator(".xn-panel")).to_have_count(1)
    panel.tell(card(1, "failed"))
    expect(option(panel, 1)).to_have_attribute("data-phase", "failed")


def test_a_gap_in_the_sequence_asks_for_everything_at_most_every_two_seconds(panel: Panel) -> None:
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


def test_a_whole_message_replaces_what_it_has(panel: Panel) -> None:
    panel.tell(troubles=(trouble(0),), lines=[block(0, "kept")])
    expect(region(panel, "Errors and notes")).to_be_visible()
    panel.begin(card(0), card(1))
    expect(region(panel, "Errors and notes")).to_be_hidden()
    assert panel.order() == [0, 1]
    assert panel.rows() == ["kept"]


def test_what_is_drawn_again_keeps_focus_selection_and_open_folds(panel: Panel) -> None:
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
def test_the_panel_is_dark_on_a_dark_page(opened: Opener, colour: str, dark: str) -> None:
    panel = opened(css=f":root {{ --jp-layout-color0: {colour} }}")
    expect(panel.page.locator(".xn-panel")).to_have_attribute("data-dark", dark)


# ------------------------------------------------------------------------------ head


def test_the_head_shows_the_cell_and_counts_ranks_by_phase(panel: Panel) -> None:
    panel.tell(card(2, "waiting"), headline="3 ranks run, 1 waits", simulated=True)
    head = panel.page.locator(".xn-head")
    for text in ("Cell In[3]", "3 ranks run, 1 waits", "4 ranks of a simulated TPU host"):
        expect(head).to_contain_text(text)
    counts = panel.page.get_by_role("list", name="Ranks by phase")
    expect(counts.locator("[data-phase=running]")).to_contain_text("3 running")
    expect(counts.locator("[data-phase=waiting]")).to_contain_text("1 waiting")


def test_a_run_that_has_only_begun_is_one_line(opened: Opener) -> None:
    panel = opened()
    panel.begin(card(0), started=time.time(), lines=[block(0, "soon")])
    log = panel.page.locator(".xn-log")
    assert not log.is_visible()
    expect(button(panel, "Stop")).to_be_visible()
    expect(log).to_be_visible()  # half a second later


def speak_at_once(panel: Panel) -> None:
    """The next title, though less than five seconds after the last one."""
    panel.page.evaluate("document.querySelector('.xn-panel').xnView.parts.head.spoken = -5000")


def test_the_elapsed_time_counts_without_messages(panel: Panel) -> None:
    elapsed = panel.page.locator(".xn-sub")
    before = elapsed.inner_text()
    expect(elapsed).not_to_have_text(before)


@pytest.mark.parametrize("what", ["panel", "page"])
def test_the_time_is_right_as_soon_as_a_panel_is_seen_again(panel: Panel, what: str) -> None:
    elapsed = panel.page.locator(".xn-sub")
    root = panel.page.locator(".xn-panel")
    if what == "panel":
        root.evaluate("root => (root.style.display = 'none')")
        panel.page.wait_for_function("!document.querySelector('.xn-panel').xnView.inSight")
    root.evaluate("root => clearInterval(root.xnView.clock)")  # the next tick never comes
    before = elapsed.text_content() or ""
    panel.page.wait_for_timeout(1100)
    assert elapsed.text_content() == before
    if what == "panel":
        root.evaluate("root => (root.style.display = '')")
    else:
        panel.page.evaluate("void document.dispatchEvent(new Event('visibilitychange'))")
    expect(elapsed).not_to_have_text(before, timeout=5000)


@pytest.mark.parametrize(
    ("seconds", "words"), [(5, "5 s"), (65, "1 min 05 s"), (7500, "2 h 05 min")]
)
def test_the_page_counts_in_the_words_of_the_kernel(
    panel: Panel, seconds: float, words: str
) -> None:
    assert going(seconds) == words
    panel.tell(started=time.time() - seconds - 0.5)
    shown = panel.page.locator("[data-since]").inner_text()
    assert shown in [going(seconds + late) for late in range(60)]  # the page may have been late


def test_the_runs_bar_shows_counts_rate_and_time_to_go(panel: Panel) -> None:
    panel.tell(bar=Bar("epochs", 250, 1000, 12.5, 60))
    shown = panel.page.get_by_role("progressbar", name="epochs")
    expect(shown).to_have_attribute("aria-valuenow", "25")
    words = "epochs: 25 % · 250 of 1,000 · 12.5/s · 1 min 00 s to go"
    expect(panel.page.locator(".xn-runbar")).to_have_text(words)


def test_a_restarted_kernel_leaves_no_time_to_go(panel: Panel) -> None:
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


def test_a_kernel_that_speaks_in_another_session_is_another_one(panel: Panel) -> None:
    """A widget manager that fails, as after some reloads, tells of no restart."""
    headline = panel.page.locator(".xn-headline")
    before = headline.inner_text()
    panel.page.evaluate(SAYS, "first")
    panel.page.evaluate(SAYS, "first")
    panel.settle()
    assert headline.inner_text() == before
    panel.page.evaluate(SAYS, "second")
    expect(headline).to_have_text(re.compile(r"^Kernel restarted; last update \d\d:\d\d:\d\d$"))
    expect(panel.page.locator("[data-action=stop]")).to_be_disabled()


def test_a_notebook_that_has_been_given_another_kernel_says_so(panel: Panel) -> None:
    panel.page.evaluate("kernel.disposed.emit()")
    expect(panel.page.locator(".xn-headline")).to_contain_text("Kernel disconnected; last update")


def test_a_panel_that_is_gone_listens_to_no_kernel(panel: Panel) -> None:
    panel.page.evaluate("unload()")
    assert panel.page.evaluate("kernel.iopubMessage.slots.size + kernel.disposed.slots.size") == 0


def test_the_diagnosis_is_the_title_and_marks_the_ranks_it_is_about(panel: Panel) -> None:
    sentence = "3 ranks have been waiting for rank 2, at line 6"
    speak_at_once(panel)
    panel.tell(diagnosis=warned(sentence, 2))
    heading = panel.page.get_by_role("heading", level=3)
    expect(heading).to_contain_text(sentence)
    expect(panel.page.locator(".xn-panel")).to_have_attribute("data-level", "warning")
    expect(panel.page.locator("[data-marked]")).to_have_count(1)
    plain = option(panel, 1).evaluate("n => getComputedStyle(n).backgroundColor")
    expect(option(panel, 2)).not_to_have_css("background-color", plain)
    panel.choose(2)  # it keeps its mark
    expect(option(panel, 2)).not_to_have_css("background-color", plain)
    expect(panel.page.locator(".xn-live")).to_have_text(sentence)
    panel.tell(diagnosis=warned("4 ranks running", 0, level="calm"))
    expect(heading).to_contain_text("4 ranks running")
    expect(panel.page.locator("[data-marked]")).to_have_count(0)


def test_why_a_run_is_stopped_is_said_once_and_a_stack_has_lines_of_its_own(panel: Panel) -> None:
    why = "Stopped by an interrupt"
    note = "Sent SIGTERM to rank 1\n  File x, line 9\n    wait()"
    found = warned(f"{why}; 1 rank still waiting")
    panel.tell(stopping=why, diagnosis=found, notices=(note,))
    expect(panel.page.locator(".xn-headline")).to_have_text(found.sentence)
    expect(panel.page.locator(".xn-say")).to_be_empty()
    assert note in region(panel, "Errors and notes").inner_text()
    panel.tell(diagnosis=warned("Rank 1 hangs"))
    expect(panel.page.locator(".xn-say")).to_have_text(why)


def test_a_run_without_a_diagnosis_is_headed_by_its_headline(panel: Panel) -> None:
    panel.tell(headline="Rank 1 failed", ok=False, ended=time.time())
    expect(panel.page.get_by_role("heading", level=3)).to_contain_text("Rank 1 failed")
    expect(panel.page.locator(".xn-panel")).to_have_attribute("data-level", "bad")


def test_the_head_stays_in_sight_with_stop(panel: Panel) -> None:
    panel.begin(*map(card, range(32)))
    panel.page.set_viewport_size({"width": 1000, "height": 400})
    panel.page.mouse.wheel(0, 500)
    panel.page.wait_for_function("scrollY > 100")
    stop = button(panel, "Stop").bounding_box()
    assert stop is not None
    assert 0 <= stop["y"] < 60
    panel.page.set_viewport_size({"width": 1000, "height": 1400})


# ------------------------------------------------------------------------------ stop, stacks


def test_stop_does_not_interrupt_a_kernel_that_answers(panel: Panel) -> None:
    panel.page.evaluate(ACKNOWLEDGE)
    button(panel, "Stop").click()
    expect(panel.page.locator(".xn-say")).to_contain_text("Stopping the ranks")
    expect(button(panel, "Stopping…")).to_be_visible()
    assert panel.page.evaluate("interrupts") == 0
    panel.tell(ended=time.time(), elapsed=3.25, ok=False)
    expect(button(panel, "Stop")).to_be_disabled()
    expect(panel.page.locator(".xn-sub")).to_contain_text("3.2 s")
    expect(panel.page.locator(".xn-say")).to_be_hidden()


def test_stop_interrupts_a_kernel_that_does_not_answer(panel: Panel) -> None:
    button(panel, "Stop").click()
    panel.page.wait_for_function("interrupts === 1")
    expect(panel.page.locator(".xn-say")).to_contain_text("Interrupted the kernel")


def test_a_second_click_on_stop_asks_again_to_end_the_ranks_now(panel: Panel) -> None:
    panel.page.evaluate(ACKNOWLEDGE)
    button(panel, "Stop").click()
    expect(panel.page.locator(".xn-say")).to_contain_text("Click again to end them now")
    button(panel, "Stopping…").click()
    panel.wait_sent("stop", 2)
    expect(panel.page.locator(".xn-say")).to_contain_text("Ending the ranks")
    assert panel.page.evaluate("interrupts") == 0


def test_a_second_click_interrupts_again_a_kernel_that_does_not_answer(panel: Panel) -> None:
    button(panel, "Stop").click()
    panel.page.wait_for_function("interrupts === 1")
    button(panel, "Stopping…").click()
    panel.page.wait_for_function("interrupts === 2")


def test_stop_names_the_toolbar_button_without_a_kernel(opened: Opener) -> None:
    panel = opened(kernel=False)
    panel.begin(card(0))
    button(panel, "Stop").click()
    expect(panel.page.locator(".xn-say")).to_contain_text("Press ■")


def test_stacks_are_grouped_below_the_ranks(panel: Panel) -> None:
    before = option(panel, 0).bounding_box()
    button(panel, "Stacks").click()
    stack = "Cell In[3], line 7, in train\n    dist.all_reduce(x)\nFile x.py, line 1, in main"
    silent = StackGroup((3,), "Cell In[3], line 9", "", "does not answer")
    groups = [silent, StackGroup((0, 1, 2), "Cell In[3]", stack, "")]
    answer = {"type": "stacks", "html": html.stacks(groups)}
    panel.give({**answer, "request": panel.wait_sent("stacks")["request"]})
    shown = region(panel, "Stacks")
    expect(shown).to_contain_text(re.compile(r"As of \d\d:\d\d:\d\d\."))
    for text in ("rank 3 at Cell In[3], line 9 does not answer", "ranks 0–2", "all_reduce(x)"):
        expect(shown).to_contain_text(text)
    assert option(panel, 0).bounding_box() == before  # nothing is pushed down
    button(panel, "Close stacks").click()
    expect(shown).to_be_hidden()


def test_stacks_that_were_closed_before_the_answer_stay_closed(panel: Panel) -> None:
    button(panel, "Stacks").click()
    button(panel, "Close stacks").click()
    answer = {"type": "stacks", "html": html.stacks([StackGroup((0,), "", "", "")])}
    panel.give({**answer, "request": panel.wait_sent("stacks")["request"]})
    expect(region(panel, "Stacks")).to_be_hidden()


def test_stacks_without_an_answer_refer_to_the_rows(panel: Panel) -> None:
    button(panel, "Stacks").click()
    shown = region(panel, "Stacks")
    expect(shown).to_have_attribute("data-state", "silent")
    expect(shown).to_contain_text("No answer yet. Each row shows where its rank was last seen.")


def test_a_hang_has_its_stacks_folded_until_it_is_over(panel: Panel) -> None:
    verdict = (
        "Rank 0 has been waiting 5 min in all_reduce for rank 1, which is in <b>`queue.get`</b>"
    )
    stack = '  File "Cell In[3]", line 9, in train\n    q.get()'
    group = StackGroup((1,), "Cell In[3], line 9", stack, "no progress for over 5 min")
    hang = HangReported(verdict=verdict, ranks=(), groups=(group,), at=30.0)
    panel.tell(hang=hang, diagnosis=warned(verdict))
    banner = region(panel, "Errors and notes")
    expect(banner).to_contain_text("Where each rank was")
    expect(banner).not_to_contain_text(verdict)  # which is the headline, meanwhile
    place = banner.get_by_text("no progress for over 5 min")
    expect(place).to_be_hidden()
    banner.get_by_text("Where each rank was").click()
    expect(place).to_be_visible()
    panel.begin(*map(card, range(4)))  # sent again: what is open stays open
    expect(place).to_be_visible()
    panel.tell(diagnosis=None, ok=False, ended=time.time())
    expect(banner).to_contain_text(verdict)
    panel.tell(hang=None)
    expect(banner).to_be_hidden()


# ------------------------------------------------------------------------------ errors


def test_errors_stand_above_the_ranks(panel: Panel) -> None:
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


def test_a_row_says_what_its_rank_does_where_and_at_what_pace(panel: Panel) -> None:
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


def test_a_short_wait_and_a_running_rank_have_no_time(panel: Panel) -> None:
    panel.tell(card(1, "waiting", since=time.time() - 1))
    for rank, phase in enumerate(("running", "waiting")):
        expect(cell(panel, rank, "state")).to_contain_text(phase)
        expect(cell(panel, rank, "at")).to_have_text("line 7")


def test_rows_are_24_pixels_high_and_their_columns_stand_below_each_other(opened: Opener) -> None:
    panel = opened()
    panel.begin(*(card(rank, step=0.1 * rank, memory=rank << 22) for rank in range(1, 9)))
    rows = panel.page.locator("[role=option]")
    boxes = [rows.nth(n).bounding_box() for n in range(8)]
    assert {round(box["height"]) for box in boxes if box} <= {24, 25}
    right = "all => all.map(n => Math.round(n.getBoundingClientRect().right))"
    assert len(set(panel.page.eval_on_selector_all("td.xn-memory", right))) == 1


def test_columns_without_anything_to_say_are_left_out(panel: Panel) -> None:
    expect(panel.page.locator("td.xn-step, td.xn-memory, td.xn-waits")).to_have_count(0)
    panel.tell(card(1, step=1.25, items=9, waits=0.004))
    expect(cell(panel, 1, "step")).to_have_text("1.25 s")
    expect(cell(panel, 0, "step")).to_have_text("")
    expect(panel.page.locator("th.xn-step")).to_have_text("step")
    expect(cell(panel, 1, "waits")).to_have_count(0)
    panel.tell(card(1, step=1.25, waits=0.3))
    expect(cell(panel, 1, "waits")).to_have_text("30 %")
    panel.tell(card(1, items=12))  # of steps that differ too much
    expect(panel.page.locator("th.xn-step")).to_have_text("step")
    expect(cell(panel, 1, "step")).to_have_text("")


def test_ranks_with_a_loop_have_how_far_each_has_come(panel: Panel) -> None:
    expect(panel.page.locator("th.xn-done")).to_have_count(0)
    panel.tell(*(card(rank, bars=(Bar("step", 20, 100),)) for rank in range(4)))
    expect(panel.page.locator("td.xn-done")).to_have_text(["20 %"] * 4)
    panel.tell(card(3, bars=(Bar("step", 40, 100),)))
    expect(panel.page.locator("td.xn-done")).to_have_text(["20 %", "20 %", "20 %", "40 %"])


def test_a_lane_is_a_picture_with_its_words_and_a_key(panel: Panel) -> None:
    panel.tell(card(2, lane=lane([1], [0.5, 0.25, 0.25], [0, 0, 0, 1])), elapsed=20.0)
    expect(panel.page.locator("th.xn-lane")).to_have_text("last 20 s")
    picture = cell(panel, 2, "lane").locator("svg")
    words = "compiling 1.50 s, running 0.25 s, waiting for others 0.25 s, waiting for data 1.00 s"
    expect(picture).to_have_attribute("aria-label", words)
    expect(cell(panel, 1, "lane").locator("svg")).to_have_count(0)
    grid = panel.page.locator(".xn-grid")
    expect(grid).to_contain_text("compiling running waiting for others waiting for data")
    panel.tell(card(2, lane=lane([0, 1], [0, 1])))
    expect(grid).not_to_contain_text("waiting for data")


def test_what_all_ranks_compiled_is_told_from_the_least_to_the_most(panel: Panel) -> None:
    panel.tell(*(card(rank, compiles=6, compile_seconds=10.9) for rank in range(4)))
    grid = panel.page.locator(".xn-grid")
    expect(grid).to_contain_text("compiles 6compile time 10.9 s")
    panel.tell(card(3, compiles=7, compile_seconds=12))
    expect(grid).to_contain_text("compiles 6 to 7compile time 10.9 s to 12.0 s")


def test_a_click_opens_all_that_is_known_of_a_rank(panel: Panel) -> None:
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
    option(panel, 2).click()  # of which the kernel has yet to tell
    expect(shown).to_be_hidden()
    panel.tell()
    expect(shown).to_contain_text("rank 2")
    button(panel, "Close").click()
    expect(shown).to_be_hidden()


def test_a_click_on_a_rows_line_chooses_no_rank(opened: Opener) -> None:
    panel = opened()
    panel.page.evaluate("document.body.className = 'jp-Notebook'")  # lines are links there
    panel.begin(card(0), card(1))
    option(panel, 1).get_by_role("link").click()
    expect(panel.page.locator(".xn-say")).to_contain_text("is no longer in this notebook")
    expect(panel.page.locator("[aria-selected=true]")).to_have_count(0)


def test_fallbacks_are_a_warning(panel: Panel) -> None:
    panel.tell(card(1, fallbacks={"aten::x": 1}))
    expect(cell(panel, 1, "state")).to_contain_text("⚠")
    panel.choose(1)
    expect(panel.page.locator(".xn-detail")).to_contain_text("ran on the CPU aten::x 1")


def test_the_keyboard_moves_among_rows_and_selects_one(panel: Panel) -> None:
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


def test_256_ranks_are_tiles_in_their_order(opened: Opener) -> None:
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
    """Ranks on several hosts, one of them lost."""
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
def test_ranks_stand_under_their_host_with_counts_by_phase(
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


def test_an_only_host_has_no_group(panel: Panel) -> None:
    panel.begin(*on_hosts(1, 4), hosts=("w-0",))
    assert hosts_shown(panel) == []
    assert panel.order() == [0, 1, 2, 3]


def test_a_lost_host_comes_first_with_the_reason(opened: Opener) -> None:
    panel = opened()
    panel.begin(*on_hosts(16, 4), hosts=workers(16))
    panel.tell(*on_hosts(16, 4, lost=7)[28:32], lost={"w-7": "its node is gone"})
    assert hosts_shown(panel)[0] == "w-7"
    expect(host(panel, "w-7")).to_contain_text("lostits node is gone")
    expect(panel.page.locator(".xn-sub")).to_contain_text("16 hosts, 1 lost")


def test_ranks_are_found_by_host_number_phase_and_line(opened: Opener) -> None:
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


def test_a_number_finds_the_rank_and_no_other(opened: Opener) -> None:
    panel = opened()
    panel.begin(*(card(rank, detail="in epoch 4") for rank in range(64)))
    for words in ("4", "rank 4"):
        panel.page.get_by_label("Find ranks").fill(words)
        panel.settle()
        expect(panel.page.locator("[role=option]:visible")).to_have_count(1)
        expect(option(panel, 4)).to_be_visible()


def test_a_search_that_finds_no_rank_says_so(opened: Opener) -> None:
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


def test_what_is_found_stays_so_in_the_next_picture(opened: Opener) -> None:
    panel = opened()
    panel.begin(*map(card, range(64)))
    panel.page.get_by_label("Find ranks").fill("7")
    panel.tell(*(card(rank, "waiting") for rank in range(64)))
    expect(panel.page.locator("[role=option]:visible")).to_have_count(1)


def test_a_click_on_a_tile_brings_the_ranks_details_into_sight(opened: Opener) -> None:
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


def test_a_tile_that_moves_keeps_the_focus(opened: Opener) -> None:
    panel = opened()
    panel.begin(*(card(rank) for rank in range(40)))
    option(panel, 22).focus()
    panel.tell(card(22, "failed"))
    expect(panel.page.locator(".xn-tiles [role=option]").first).to_have_attribute("data-rank", "22")
    expect(option(panel, 22)).to_be_focused()


def test_the_keyboard_moves_among_tiles(opened: Opener) -> None:
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
    """What ranks 0, 1, … reported at steps 0, 1, …"""
    series = Series(name, {})
    for rank, values in enumerate(lines):
        line = Line(limit=400)
        for step, value in enumerate(values):
            line.add(step, value)
        series.lines[rank] = line.whole()
        if line.odd:
            series.odd[rank] = line.odd
    return (series,)


def drawn(panel: Panel) -> dict[str, list[tuple[float, float | None]]]:
    """What the chart of the loss shows: lines by name as points, and the labels of its axes
    ("across", "up"), each with its place in the plot in pixels."""
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
    """The points of a line of the loss, apart where it has a gap."""
    found: list[list[tuple[float, float]]] = [[]]
    for x, y in drawn(panel)[name]:
        if y is not None:
            found[-1].append((x, y))
        elif found[-1]:
            found.append([])
    return [[tuple(point) for point in piece] for piece in found if piece]


def test_a_figure_has_a_line_and_a_last_value_for_each_of_two_ranks(panel: Panel) -> None:
    panel.tell(series=loss([3, 2, 1], [4, math.nan, 2.5]))
    shown = panel.page.locator("[data-figure=loss]")
    expect(shown.locator("[data-legend='1']")).to_have_text("rank 12.5")
    assert pieces(panel, "rank 0") == [[(0, 3), (1, 2), (2, 1)]]
    assert pieces(panel, "rank 1") == [[(0, 4)], [(2, 2.5)]]
    panel.tell(series=loss([3, 2, 1, 0.5], [4, math.nan, 2.5]))
    expect(shown.locator("[data-legend='0']")).to_have_text("rank 00.5")
    assert pieces(panel, "rank 0") == [[(0, 3), (1, 2), (2, 1), (3, 0.5)]]


def test_numbers_have_the_same_words_in_the_page_and_in_the_kernel(panel: Panel) -> None:
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


def test_a_value_that_is_not_finite_is_named_and_marked(panel: Panel) -> None:
    panel.tell(series=loss([1, math.nan], [2, -math.inf]))
    shown = panel.page.locator("[data-figure=loss]")
    expect(shown.locator("[data-legend='0'] b")).to_have_text("NaN")
    expect(shown.locator("[data-legend='1'] b")).to_have_text("-inf")
    expect(shown.locator("figcaption")).to_contain_text("NaN since step 1 (rank 0)")
    expect(shown.locator(".xn-odd")).to_have_count(1)
    panel.tell(series=loss([1, *[math.nan] * 2, 2, *[math.inf] * 2], [2, 3]))
    expect(shown.locator(".xn-odd")).to_have_count(2)  # one for each time that it became so
    mark = shown.locator(".xn-odd").last.evaluate("n => n.offsetLeft")
    assert mark == pytest.approx(dict(drawn(panel)["across"])["4"], abs=1)
    panel.tell(series=loss([math.nan], [math.nan, math.inf]))
    assert axis(panel) == []


def test_more_ranks_are_their_mean_in_a_band_with_the_line_of_the_chosen_one(
    opened: Opener,
) -> None:
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


def test_where_others_count_than_before_the_mean_has_a_gap(opened: Opener) -> None:
    """Some cells of live ranks are for a few of them."""
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
def test_a_lone_point_is_a_dot(opened: Opener, ranks: int) -> None:
    panel = opened()
    panel.begin(*map(card, range(ranks)), series=loss(*([rank] for rank in range(ranks))))
    assert 4 <= panel.page.evaluate(INK) <= 30
    panel.tell(series=loss(*[[math.nan]] * ranks))
    assert panel.page.evaluate(INK) < 4


PICTURES = "[...document.querySelectorAll('.xn-plot canvas')].map(one => one.toDataURL())"
#: While the charts are drawn for another reason, of which the first has been.
MEANWHILE = """async () => {
    const view = document.querySelector('.xn-panel').xnView;
    view.changed('figures');
    while (view.parts.figures.queue.length !== 2) await new Promise(requestAnimationFrame);
    document.body.style.background = '#111';
    view.tick();
}"""


#: While there is no room for charts, as at times in a JupyterLab that changes its theme.
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
        "() => document.body.style.setProperty('--jp-ui-font-color1', '#400')",  # as light
        MEANWHILE,
        HIDDEN,
    ],
    ids=["dark", "high contrast", "meanwhile", "hidden"],
)
def test_all_charts_are_drawn_anew_in_another_theme(panel: Panel, theme: str) -> None:
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


def test_the_first_frame_tells_nothing_that_is_not_known(opened: Opener) -> None:
    panel = opened()
    head = panel.page.locator(".xn-sub")
    expect(head).to_be_empty()
    panel.begin(cell="")
    expect(head).not_to_contain_text(re.compile("run-1|rank"))


def test_a_page_that_gets_messages_late_says_so_and_counts_on(panel: Panel) -> None:
    said = panel.page.locator(".xn-say")
    expect(said).to_be_empty()
    panel.give({**panel.news(), "now": time.time() - 90})
    expect(said).to_contain_text(re.compile(r"This page is 1 min (29|30) s behind"))
    expect(panel.page.locator(".xn-sub")).not_to_contain_text("1 min")  # how long it has run
    panel.tell()
    expect(said).to_be_empty()


def test_values_of_a_figure_are_read_with_the_pointer(panel: Panel) -> None:
    panel.tell(series=loss(range(11), range(5, 16), range(4, 15)))
    shown = panel.page.locator("[data-figure=loss]")
    shown.locator(".u-over").hover(position={"x": 3, "y": 50})
    expect(shown.locator(".xn-at")).to_have_text("step 0")
    expect(shown.locator("[data-legend]")).to_have_text(["max5", "min0", "mean3"])
    panel.page.mouse.move(1, 1)
    expect(shown.locator(".xn-at")).to_have_text("step 10")
    expect(shown.locator("[data-legend]")).to_have_text(["max15", "min10", "mean13"])


def test_last_values_of_two_ranks_at_different_steps_are_no_steps_values(panel: Panel) -> None:
    panel.tell(series=loss(range(11), range(5)))
    shown = panel.page.locator("[data-figure=loss]")
    expect(shown.locator(".xn-at")).to_have_text("last of each")
    expect(shown.locator("[data-legend]")).to_have_text(["rank 010", "rank 14"])
    panel.tell(series=loss(range(11), range(11)))
    expect(shown.locator(".xn-at")).to_have_text("step 10")


def test_the_pointer_beside_a_gap_reads_a_step_that_there_is(panel: Panel) -> None:
    panel.tell(series=loss([1, 2, 3], [1, math.nan, 3], [1, 2, 3]))  # others count at step 1
    told = panel.page.evaluate("""() => {
        const { charts } = document.querySelector('.xn-panel').xnView.parts.figures;
        const { uplot, legend } = charts.get('loss');
        return Array.from({ length: 40 }, (_, n) => {
            uplot.setCursor({ left: uplot.valToPos(n / 20, 'x'), top: 10 });
            return legend.querySelector('.xn-at').textContent;
        });
    }""")
    assert set(told) == {"step 0", "step 1 · of 2 ranks", "step 2"}


def test_values_of_some_ranks_are_not_told_as_those_of_all(panel: Panel) -> None:
    panel.tell(series=loss([1, 2, 3], [1, 2, 3], [1, 2, 3, 4, 5]))
    shown = panel.page.locator("[data-figure=loss]")
    expect(shown.locator(".xn-at")).to_have_text("step 4 · of 1 rank")
    shown.locator(".u-over").hover(position={"x": 3, "y": 50})
    expect(shown.locator(".xn-at")).to_have_text("step 0")


def test_a_part_of_a_chart_is_shown_by_a_drag_until_a_double_click(opened: Opener) -> None:
    panel = opened()
    lines = [[1 + step % 7 + rank for step in range(300)] for rank in range(3)]
    for step in (5, 160):  # one in the part, one not
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
    panel.tell(series=loss(*([*line, 1] for line in lines)))  # stays while news come,
    assert min(across()) >= 149 and max(across()) <= 181
    panel.page.get_by_role("button", name="log").click()  # and on another axis
    panel.page.mouse.move(1, 1)
    assert min(across()) >= 149 and max(across()) <= 181
    expect(shown.locator(".xn-at")).to_have_text(re.compile("zoomed · step 1[78]\\d"))
    expect(mark).to_have_count(1)
    assert mark.evaluate("n => n.offsetLeft") == pytest.approx(place_of(160), abs=1)
    panel.page.mouse.dblclick(middle, y)
    panel.page.mouse.move(1, 1)
    expect(shown.locator(".xn-at")).to_have_text("step 300")
    assert (min(across()), max(across())) == (0, 300)
    panel.page.mouse.click(middle, y)  # is no drag
    panel.page.mouse.move(1, 1)
    expect(shown.locator(".xn-at")).to_have_text("step 300")


def test_a_line_whose_steps_begin_again_is_drawn_in_their_order(panel: Panel) -> None:
    panel.tell(series=(Series("loss", {0: [(0, 1), (1, 2), (2, 3), (1, 5)]}),))
    assert pieces(panel, "rank 0") == [[(0, 1), (1, 5), (2, 3)]]


def axis(panel: Panel) -> list[str]:
    """The labels of the y axis of the loss, from below."""
    return [str(label) for label, _ in drawn(panel)["up"]]


def test_ticks_of_steps_are_whole_as_steps_are(panel: Panel) -> None:
    def across() -> list[str]:
        return [str(label) for label, _ in drawn(panel)["across"]]

    for values, steps in (((3, 2, 1), ["0", "1", "2"]), ((3, 2), ["0", "1"]), ((3,), ["0"])):
        panel.tell(series=loss(values))
        assert across() == steps
    panel.tell(series=(Series("loss", {0: [(0.5, 3), (1.5, 2)]}),))
    assert len(across()) >= 3


def test_an_axis_has_at_least_three_labels(panel: Panel) -> None:
    for values in (0.9, 1.1), (2.2, 0.2), (1, 1), (0, 1e-7), (-5, 1e6):
        panel.tell(series=loss(values))
        assert len(set(axis(panel))) >= 3, values


#: How much room is beside the longest label of the y axis, in pixels.
ROOM = """() => {
    const { charts } = document.querySelector('.xn-panel').xnView.parts.figures;
    const { ctx, axes } = charts.get('loss').uplot;
    const widths = axes[1]._values.map((text) => ctx.measureText(text).width);
    return axes[1]._size - 4 - Math.max(...widths);
}"""


def test_labels_of_an_axis_differ_and_fit(panel: Panel) -> None:
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


def test_a_logarithmic_axis_has_round_labels_in_their_places(panel: Panel) -> None:
    panel.tell(series=loss(LOGARITHMIC[0]))
    button(panel, "log").click()
    for values in LOGARITHMIC:
        panel.tell(series=loss(values))
        has_round_labels_in_their_places(panel)


def has_round_labels_in_their_places(panel: Panel) -> None:
    labels = [float(text.replace(",", "")) for text in axis(panel)]
    places = [place for _, place in drawn(panel)["up"] if place is not None]
    assert 3 <= len(set(labels)) == len(labels) == len(places) <= 7
    assert all(abs(after - before) >= 12 for before, after in pairwise(places))
    powers = [math.log10(label) for label in labels]
    a_decade = (places[-1] - places[0]) / (powers[-1] - powers[0])
    for label, power, place in zip(labels, powers, places, strict=True):
        assert abs(places[0] + a_decade * (power - powers[0]) - place) <= 1
        assert len(f"{label:e}".rstrip("0").partition("e")[0].rstrip("0")) <= 4


def test_values_without_a_place_on_a_logarithmic_axis_are_told(panel: Panel) -> None:
    panel.tell(series=loss([1, 0, -3, 10]))
    told = panel.page.locator("[data-figure=loss] .xn-at")
    expect(told).to_have_text("step 3")
    button(panel, "log").click()
    expect(told).to_have_text("without values ≤ 0 · step 3")
    expect(panel.page.locator("[data-figure=loss] [data-legend='0']")).to_have_text("rank 010")


def test_the_mean_of_a_logarithmic_axis_is_that_of_the_values(panel: Panel) -> None:
    panel.tell(series=loss([1, 1], [1, 10], [1, 100]))
    button(panel, "log").click()
    assert pieces(panel, "mean") == [[(0, 1), (1, 37)]]


def test_without_figures_there_are_no_charts(panel: Panel) -> None:
    panel.tell(card(0, memory=100 << 20))
    expect(button(panel, "log")).to_be_hidden()
    panel.tell(series=loss([1, 2]))
    expect(button(panel, "log")).to_be_visible()


# ------------------------------------------------------------------------------ output


def test_output_of_all_ranks_is_merged_and_stderr_is_marked(panel: Panel) -> None:
    panel.tell(lines=[block(2, "a"), block(0, "b", stream="err"), block(None, "c")])
    rows = panel.page.locator(".xn-row")
    expect(rows.locator(".xn-tag")).to_have_text(["2", "0", "cell"])
    expect(rows.locator(".xn-err")).to_have_text(["err"])
    expect(rows.nth(1)).to_have_attribute("data-stream", "err")


def tags(panel: Panel) -> list[str]:
    return list(panel.page.locator(".xn-row .xn-tag").all_inner_texts())


def test_equal_lines_of_ranks_are_one_line(panel: Panel) -> None:
    panel.tell(lines=[block(rank, "warning", stream="err") for rank in (0, 1, 3)])
    panel.tell(lines=[block(2, "warning", stream="err"), block(2, "own")])
    assert panel.rows() == ["warning", "own"]
    assert tags(panel) == ["0–3", "2"]


def test_a_line_of_stderr_stays_behind_what_its_rank_has_printed(panel: Panel) -> None:
    panel.tell(lines=[block(0, "a 0"), block(0, "warning", stream="err")])
    panel.tell(lines=[block(1, "a 1"), block(1, "warning", stream="err")])
    assert panel.rows() == ["a 0", "warning", "a 1", "warning"]


def test_a_line_joins_an_equal_one_only_behind_all_others_of_its_rank(panel: Panel) -> None:
    panel.tell(lines=[block(0, "a", "b"), block(1, "b", "a"), block(2, "a", "b")])
    assert panel.rows() == ["a", "b", "a", "b"]
    assert tags(panel) == ["0", "0, 1", "1, 2", "2"]
    panel.tell(lines=[block(2, "b", start=4)])  # once more, of the same rank
    assert panel.rows() == ["a", "b", "a", "b", "b"]
    select_rank(panel, 1)
    assert panel.rows() == ["b", "a"]


def test_equal_lines_in_stdout_and_stderr_stay_apart(panel: Panel) -> None:
    panel.tell(lines=[block(0, "a"), block(1, "a", stream="err")])
    assert panel.rows() == ["a", "a"]


def test_lanes_that_change_leave_no_documents_behind(panel: Panel) -> None:
    """A page with many falls behind."""
    client = panel.page.context.new_cdp_session(panel.page)

    def documents() -> int:
        return int(client.send("Memory.getDOMCounters")["documents"])

    panel.tell(*(card(rank, lane=lane([1])) for rank in range(4)))
    before = documents()
    for n in range(60):
        panel.tell(*(card(rank, lane=lane(*[[1]] * n)) for rank in range(4)))
    assert documents() - before < 20
    expect(panel.page.locator("td.xn-lane svg")).to_have_count(4)
    expect(panel.page.locator("td.xn-lane").first).to_have_attribute("title", re.compile("59.0 s"))


def test_an_empty_line_is_a_line_too(panel: Panel) -> None:
    panel.tell(lines=[block(0, "above", "", "below")])
    option(panel, 0).click()
    heights = panel.page.eval_on_selector_all(".xn-row", "all => all.map(n => n.offsetHeight)")
    assert len(heights) == 3 and len(set(heights)) == 1


def test_rows_fit_a_narrow_panel(panel: Panel) -> None:
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


def test_eight_ranks_with_two_charts_and_a_full_log_fit_630_pixels(opened: Opener) -> None:
    panel = opened()
    panel.page.set_viewport_size({"width": 940 + 24, "height": 900})  # and the page's padding
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
    button(panel, "Figures").click()  # what room they leave is the log's
    log = panel.page.locator(".xn-log").bounding_box()
    assert log is not None
    assert log["height"] > 200
    button(panel, "Figures").click()  # the page remembers it


def test_the_log_grows_with_its_lines_up_to_a_height(panel: Panel) -> None:
    log = panel.page.locator(".xn-log")

    def height() -> float:
        box = log.bounding_box()
        assert box is not None
        return float(box["height"])

    panel.tell(lines=[block(0, "a")])
    one = height()
    panel.tell(lines=[block(0, "b", "c", start=2)])
    assert height() > one + 30
    panel.tell(lines=[block(0, *map(str, range(300)), start=6)])
    full = height()
    assert full < 300
    panel.tell(lines=[block(0, *map(str, range(300)), start=9999)])
    assert height() == full


def test_a_folded_section_is_folded_in_the_next_panel_too(opened: Opener) -> None:
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
    assert again.page.evaluate("localStorage.getItem('xla_nb.folded')") == "[]"


def test_one_stream_can_be_selected(panel: Panel) -> None:
    panel.tell(lines=[block(2, "a"), block(0, "b", stream="err")])
    panel.page.get_by_label("Stream").select_option("err")
    panel.settle()
    assert panel.rows() == ["b"]


def test_the_filter_keeps_and_counts_matching_lines(panel: Panel) -> None:
    panel.tell(lines=[block(0, "Loss 1", "other", "\x1b[31mlo\x1b[0mss 2", start=0)])
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


def test_scrolling_up_holds_the_lines_and_the_end_follows_again(panel: Panel) -> None:
    log = panel.page.locator(".xn-log")
    panel.tell(lines=[block(0, *map(str, range(300)))])
    assert panel.rows()[-1] == "299"
    scroll(panel, 200)
    expect(log).to_have_attribute("data-follow", "false")
    panel.settle()
    assert len(panel.rows()) == 300  # lines that were held outside the page
    seen = log.evaluate("log => log.scrollTop")
    panel.tell(lines=[block(1, "new", "newer")])
    assert log.evaluate("log => log.scrollTop") == seen
    assert "new" not in panel.rows()
    button(panel, "Follow · 2 new").click()
    expect(log).to_have_attribute("data-follow", "true")
    panel.settle()
    assert panel.rows()[-1] == "newer"
    assert log.evaluate("log => log.scrollHeight - log.scrollTop - log.clientHeight") <= 1


def test_the_follow_button_holds_and_follows(panel: Panel) -> None:
    panel.tell(lines=[block(0, "a")])
    follow = button(panel, "Follow")
    expect(follow).to_have_attribute("aria-pressed", "true")
    follow.click()
    expect(follow).to_have_attribute("aria-pressed", "false")
    panel.tell(lines=[block(0, "b", start=2)])
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
    red = "oklch(var(--xn-lightness) var(--xn-chroma) 25)"
    expect(spans.nth(0)).to_have_attribute("style", f"color:{red};font-weight:bold")
    expect(spans.nth(1)).to_have_css("color", "rgb(255, 135, 0)")
    expect(spans.nth(2)).to_have_css("background-color", "rgb(1, 2, 3)")
    expect(spans.nth(3)).to_have_css("color", "rgb(1, 2, 3)")
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
            lines=[block(0, text, start=panel.seq)],
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


def test_lines_left_out_are_counted(panel: Panel) -> None:
    panel.tell(lines=[block(3, "after", start=99, skipped=4210)])
    assert panel.rows() == ["… 4,210 lines not shown, in rank-3.out", "after"]


def test_a_page_that_has_missed_nothing_keeps_its_lines(panel: Panel) -> None:
    panel.tell(lines=[block(0, "start", start=0)])
    panel.begin(card(0), before=[block(0, "art", start=2)])  # which another page has asked for
    assert panel.rows() == ["start"]


def test_a_page_that_has_missed_something_gets_its_lines_anew(opened: Opener) -> None:
    panel = opened()
    panel.begin(card(0), lines=[block(0, "start", start=0)])
    panel.seq += 3
    panel.tell(lines=[block(0, "end", start=80)])
    panel.wait_sent("whole", 2)
    before = [block(0, "start", "missed", "end", start=0)]
    panel.begin(card(0), before=before, lines=[block(0, "more", start=99)])
    assert panel.rows() == ["start", "missed", "end", "more"]


def test_a_page_that_is_opened_late_shows_each_line_once(opened: Opener) -> None:
    panel = opened()
    panel.seq = 3
    panel.tell(card(0), lines=[block(0, "long", "the end", start=90)])  # before it was heard
    before = [block(0, "start", "long", "the end", start=80)]  # as far as one look goes back
    panel.begin(card(0), before=before, lines=[block(0, "more", start=99)])
    assert panel.rows() == ["start", "long", "the end", "more"]


def test_copy_gives_the_lines_without_styles(panel: Panel) -> None:
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


def test_the_path_is_of_the_selected_rank_and_stream(panel: Panel) -> None:
    panel.tell(lines=[block(2, "one")])
    select_rank(panel, 2)
    panel.page.get_by_label("Stream").select_option("err")
    told = f"{RUN.record}/rank-2.err"
    expect(button(panel, "Copy path")).to_have_attribute("title", told)


def select_rank(panel: Panel, rank: int) -> None:
    option(panel, rank).click()
    expect(panel.page.get_by_role("heading", name=f"Output of rank {rank}")).to_be_visible()
    panel.settle()


def test_fetching_earlier_lines_keeps_the_scroll_position(panel: Panel) -> None:
    panel.tell(lines=[block(0, *(f"line {n}" for n in range(100, 150)), start=1000)])
    select_rank(panel, 0)
    button(panel, "Earlier output").click()
    asked = panel.wait_sent("earlier")
    assert asked | {"request": 0, "count": 0} == {
        "type": "earlier",
        "request": 0,
        "rank": 0,
        "stream": "out",
        "before": 1000,
        "count": 0,
    }
    place = "n => n.getBoundingClientRect().top"
    row = panel.page.locator(".xn-row", has_text="line 140")
    before = row.evaluate(place)
    panel.give(
        {
            **asked,
            "start": 0,
            "lines": [f"line {n}" for n in range(100)],
            "sizes": [9] * 100,
            "first": True,
        }
    )
    assert panel.rows() == [f"line {n}" for n in range(150)]
    assert abs(row.evaluate(place) - before) <= 1
    expect(button(panel, "Earlier output")).to_be_hidden()


def written(panel: Panel, *ranks: int) -> None:
    """Ranks have printed 8,000 lines each, of which the page was sent the last 50."""
    lines = [f"line {n}" for n in range(7950, 8000)]
    panel.tell(lines=[block(rank, *lines, start=70000, skipped=7950) for rank in ranks])


def fetched(panel: Panel, asked: dict[str, Any], numbers: range) -> None:
    lines = [f"line {n}" for n in numbers]
    about = {"start": 9 * numbers[0], "first": numbers[0] == 0, "sizes": [9] * len(lines)}
    panel.give({**asked, **about, "lines": lines})


def test_what_is_not_shown_is_marked_where_it_is_missing(panel: Panel) -> None:
    written(panel, 0)
    select_rank(panel, 0)
    button(panel, "Earlier output").click()
    asked = panel.wait_sent("earlier")
    assert (asked["before"], asked["count"]) == (70000, 1000)
    fetched(panel, asked, range(6950, 7950))
    rows = panel.rows()
    assert rows[:2] == ["… 6,950 lines not shown, in rank-0.out", "line 6950"]
    assert rows[-51:-49] == ["line 7949", "line 7950"]
    expect(panel.page.locator(".xn-top")).to_contain_text("1,050 of 8,000 lines.")


def test_a_filter_says_how_much_it_has_searched(panel: Panel) -> None:
    """A line that was not sent may have the word."""
    written(panel, 0)
    select_rank(panel, 0)
    panel.page.get_by_label("Filter output").fill("line 6951")
    expect(panel.page.locator(".xn-top")).to_contain_text("50 of 8,000 lines searched.")
    expect(panel.page.locator(".xn-matches")).to_have_text("0 hits")
    assert panel.rows() == ["… 7,950 lines not shown, in rank-0.out"]
    button(panel, "Earlier output").click()
    fetched(panel, panel.wait_sent("earlier"), range(6950, 7950))
    expect(panel.page.locator(".xn-matches")).to_have_text("1 hit")
    assert panel.rows() == ["… 6,950 lines not shown, in rank-0.out", "line 6951"]
    panel.page.get_by_label("Filter output").fill("line 7000")  # what was fetched stays
    expect(panel.page.locator(".xn-matches")).to_have_text("1 hit")


def test_the_output_of_all_ranks_says_how_much_of_it_is_there(panel: Panel) -> None:
    written(panel, 0, 1)
    scroll(panel, 40)
    expect(panel.page.locator(".xn-top")).to_contain_text("100 of 16,000 lines.")


def test_scrolling_to_the_top_fetches_earlier_lines(panel: Panel) -> None:
    panel.tell(lines=[block(0, *map(str, range(50)), start=1000)])
    select_rank(panel, 0)
    scroll(panel, 100)
    expect(panel.page.locator(".xn-log")).to_have_attribute("data-follow", "false")
    scroll(panel, 0)
    assert panel.wait_sent("earlier")["before"] == 1000


def test_a_kernel_that_cannot_fetch_earlier_lines_is_reported(panel: Panel) -> None:
    panel.tell(lines=[block(0, "a", start=1000)])
    select_rank(panel, 0)
    button(panel, "Earlier output").click()
    expect(panel.page.locator(".xn-top")).to_contain_text("No answer yet")
    panel.give(
        {**panel.wait_sent("earlier"), "start": 0, "first": True, "lines": ["late"], "sizes": [5]}
    )
    assert panel.rows() == ["late", "a"]


def test_earlier_output_is_offered_where_there_is_some(panel: Panel) -> None:
    panel.tell(lines=[block(0, "first", "second", start=0)])
    select_rank(panel, 0)
    expect(button(panel, "Earlier output")).to_be_hidden()
    panel.tell(lines=[block(0, "much later", start=100, skipped=8)])
    expect(button(panel, "Earlier output")).to_be_visible()
    select_rank(panel, 1)
    expect(button(panel, "Earlier output")).to_be_hidden()


def test_earlier_lines_in_the_page_are_bounded(panel: Panel) -> None:
    panel.page.evaluate(
        "void (answer = m => m.type === 'earlier' && give({...m, start: m.before - 10000,"
        " first: false, sizes: Array(3000).fill(3),"
        " lines: Array.from({length: 3000}, (_, i) => `${m.before} ${i}`)}))"
    )
    panel.tell(lines=[block(0, "last", start=10**9, skipped=10**6)])
    select_rank(panel, 0)
    for _ in range(4):  # not by the mouse, whose way there scrolls, which asks for them too
        panel.page.get_by_text("Earlier output", exact=True).dispatch_event("click")
        panel.settle()
    expect(button(panel, "Earlier output")).to_be_hidden()
    expect(panel.page.locator(".xn-top")).to_contain_text("See the log file for all.")
    assert len(panel.rows()) < 13_000


@pytest.mark.parametrize("ranks", [8, 256])
def test_a_flood_leaves_a_bounded_page(opened: Opener, ranks: int) -> None:
    panel = opened()
    panel.begin(*map(card, range(ranks)))
    panel.page.evaluate(
        """async ([ranks, total]) => {
            const each = total / ranks / 40;
            for (let k = 0; k < 40; k++) {
                const lines = Array.from({length: ranks}, (_, rank) => ({
                    rank, stream: 'out', start: k * 1e6, skipped: 0,
                    lines: Array.from({length: each}, (_, i) => `step ${k * each + i}`),
                    sizes: Array(each).fill(9),
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
        lines=[block(0, "a", start=9)],
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


def test_only_the_diagnosis_is_spoken(panel: Panel) -> None:
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


def test_a_diagnosis_is_spoken_again_when_more_than_its_numbers_have_changed(
    panel: Panel,
) -> None:
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


def test_a_screen_reader_finds_headings_and_lists(panel: Panel) -> None:
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
def test_what_has_the_focus_is_outlined(opened: Opener, ranks: int) -> None:
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


def test_every_control_is_reached_with_the_tab_key(panel: Panel) -> None:
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
    """The names of the controls that the Tab key reaches, until it leaves the page."""
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


def test_devices_of_one_process_share_its_output(panel: Panel) -> None:
    panel.begin(*(card(n, device=f"device {n}") for n in range(4)), unit="device")
    expect(panel.page.get_by_role("button", name="4 devices")).to_be_visible()
    panel.tell(lines=[block(0, "hello")])
    panel.choose(2)
    expect(panel.page.locator(".xn-detail")).to_contain_text("device 2")
    assert panel.rows() == ["hello"]
    expect(panel.page.get_by_role("heading", name="Output", exact=True)).to_be_visible()


#: The text of the page that is nearer to its background than it may be (WCAG: 4.5 to 1), and what
#: is smaller than 12 pixels.
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
def test_all_text_is_large_and_dark_enough(opened: Opener, theme: str, ranks: int) -> None:
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

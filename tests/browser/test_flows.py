"""The live panel in JupyterLab and Notebook 7: as a user sees it, and as it is saved.

Runs wait for a file that the test creates, so each state lasts until the test has checked it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from textwrap import indent
from typing import Literal

import pytest
from nbformat import NotebookNode
from playwright.sync_api import BrowserContext, Locator, Page, expect

from tests.browser.lab import Lab, LabNotebook, of_cells
from tests.support.ray_nodes import eventually

WIDGET = "application/vnd.jupyter.widget-view+json"
NUMBERS = count()

TRAIN = """\
import xla_nb
for step in xla_nb.progress(range(40), label="steps"):
    xla_nb.report(loss=1 / (step + 1 + rank))
    if step == 20:  # 20 are done
        print("hello from", rank, flush=True)
        hold()
print("bye from", rank)
"""
ENDLESS = "import time\nprint('begun', rank, flush=True)\nwhile True:\n    time.sleep(0.05)\n"
TALK = """\
import sys
for line in range(5):
    print("apple" if line == 3 else "pear", line, "of", rank, flush=True)
print("plum of", rank, file=sys.stderr, flush=True)
hold()
"""
STUCK = """\
import time, torch, torch_xla, torch_xla.core.xla_model as xm
ones = torch.ones(4, device=torch_xla.device())
if rank:
    while True: print("round", flush=True); time.sleep(0.05)  # the loop
xm.all_reduce("sum", [ones])
"""
FAIL = """\
if rank == 1:
    hold("fine")
if rank != 2:
    hold("others")
    print("about to fail", rank)
raise ValueError(f"bad batch on {rank}")
"""
# Checks whether a page shows the kernel as busy.
STATUSES: dict[Literal["lab", "notebook"], str] = {
    "lab": "/busy/i.test(document.querySelector('#jp-main-statusbar').innerText)",
    "notebook": "/busy/.test(document.querySelector('link[rel~=icon]').href)",
}
# Records each status that a page shows for half a second, and counts its answered messages.
STATUS_SHOWN = """(panel, isBusy) => {
    window.shown = [], window.answers = 0;
    let [last, since] = [null, 0];
    panel.sessionContext.session.kernel.iopubMessage.connect((_, { content, parent_header }) => {
        if (content.execution_state === "idle" && parent_header.msg_type === "comm_msg") answers++;
    });
    window.looking = setInterval(() => {
        const now = isBusy() ? "busy" : "idle";
        if (now !== last) [last, since] = [now, performance.now()];
        if (performance.now() - since > 500 && shown.at(-1) !== now) shown.push(now);
    }, 10);
}"""
# Makes JupyterLab's widget manager fail to handle a restart.
MISSES = """panel => {
    const { widget_manager } = panel.xnView.store.model;
    widget_manager.disconnect = () => { throw new TypeError("no kernel"); };
}"""
HOSTILE = r"""
import os, sys
print("<script>window.hacked=1</script>")
print('<img src=x onerror="window.hacked=1">', "</div></pre></details>")
print("nul [\0] title [\x1b]0;owned\x07] cleared [\x1b[2J\x1b[H] red \x1b[31mcherry\x1b[0m")
print("marks [\u202eabc\u2066def]")
sys.stdout.flush()
os.write(1, b"bytes [\xff\xfe]\n")
os.write(1, b"y" * 1_000_000)
print()
print("<script>window.hacked=2</script>", file=sys.stderr)
print("the end", flush=True)
hold()
raise ValueError("<img src=x onerror='window.hacked=3'></pre><script>window.hacked=4</script>")
"""


@dataclass
class Flow:
    """A launched cell that waits at each `hold(name)`."""

    notebook: LabNotebook
    cell: int
    number: int

    @property
    def output(self) -> Locator:
        return self.notebook.output(self.cell)

    @property
    def panel(self) -> Locator:
        return self.output.locator(".xn-panel")

    @property
    def saved(self) -> Locator:
        """The HTML that replaces the panel after the run."""
        return self.output.locator(".jp-RenderedHTMLCommon").first

    def rank(self, rank: int) -> Locator:
        return self.panel.locator(f'[role=option][data-rank="{rank}"]')

    def rows(self, text: str = "") -> Locator:
        return self.panel.locator(".xn-log .xn-row").filter(has_text=text)

    def in_phase(self, phase: str, ranks: int) -> None:
        """Wait until the counts and the cards show this number of ranks in a phase."""
        counted = self.panel.locator(f".xn-counts [data-phase={phase}]")
        expect(counted).to_contain_text(f"{ranks} {phase}")
        expect(self.panel.locator(f"[role=option][data-phase={phase}]")).to_have_count(ranks)

    def let_go(self, name: str = "go") -> None:
        (self.notebook.lab.root / f"{name}-{self.number}").touch()

    def ended(self) -> None:
        """Wait until the cell has ended and the panel is gone."""
        self.notebook.done(self.cell, timeout=60)
        expect(self.panel).to_have_count(0)


def flow(notebook: LabNotebook, options: str, body: str) -> Flow:
    """Start a cell with these options and this code."""
    number = next(NUMBERS)
    hold = (
        "def hold(name='go'):\n"
        "    import pathlib, time\n"
        f"    while not pathlib.Path(f'{{name}}-{number}').exists():\n"
        "        time.sleep(0.02)\n"
    )
    main = f"def main(rank):\n{indent(body, '    ')}"
    return started(notebook, f"%%xla_spawn {options}\n{hold}{main}", number)


def started(notebook: LabNotebook, source: str, number: int) -> Flow:
    """Start a cell that shows a panel, and scroll to the panel."""
    cell = notebook.add(source)
    notebook.run(cell)
    run = Flow(notebook, cell, number)
    run.panel.wait_for(state="attached", timeout=60_000)  # the first run imports torch_xla
    run.panel.evaluate("panel => panel.scrollIntoView()")  # it draws only while visible
    return run


def saved(notebook: LabNotebook, cell: int) -> NotebookNode:
    notebook.save()
    return notebook.lab.read(notebook.name).cells[cell]


def works(notebook: LabNotebook) -> None:
    """Check that the kernel runs another cell."""
    assert "42" in notebook.text(notebook.execute("6 * 7"))


# ---------------------------------------------------------------- watching


def test_panel_shows_four_ranks_and_leaves_saved_result(notebook: LabNotebook) -> None:
    run = flow(notebook, "-n 4", TRAIN)
    run.in_phase("waiting", 4)
    for rank in range(4):
        expect(run.rows(f"hello from {rank}")).to_have_attribute("data-rank", str(rank))
        expect(run.rank(rank).locator(".xn-at")).to_contain_text("line")
    expect(run.panel.locator('[data-figure="loss"] canvas')).to_have_count(1)
    bar = run.panel.locator(".xn-runbar")
    expect(bar.get_by_role("progressbar", name="steps")).to_have_attribute("aria-valuenow", "50")
    expect(bar).to_contain_text("20 of 40")  # of each rank
    run.let_go()
    run.ended()
    for text in ("4 ranks finished", "loss", *(f"bye from {rank}" for rank in range(4))):
        expect(run.saved).to_contain_text(text)
    outputs = saved(notebook, run.cell).outputs
    assert not any(WIDGET in output.get("data", {}) for output in outputs)
    assert "bye from 3" in "".join(output.data["text/plain"] for output in outputs)
    assert notebook.errors == []


def test_link_in_row_selects_its_line_in_the_notebook(notebook: LabNotebook) -> None:
    run = flow(notebook, "-n 2", "print('here', rank)\nhold()")
    run.in_phase("waiting", 2)
    link = run.rank(1).get_by_role("link", name="line")
    number = int(link.inner_text().rpartition(" ")[2])
    link.click()
    selected = notebook.page.locator(".jp-Cell.jp-mod-selected .cm-content")
    expect(selected).to_be_focused()
    line = saved(notebook, run.cell).source.splitlines()[number - 1]
    assert notebook.page.evaluate("String(getSelection())") == line
    run.let_go()
    run.ended()


def test_stop_button_stays_visible_when_notebook_scrolls(notebook: LabNotebook) -> None:
    run = flow(notebook, "-n 16", "hold()")
    run.in_phase("waiting", 16)
    run.panel.evaluate("panel => panel.querySelector('[data-rank=\"9\"]').scrollIntoView()")
    stop = run.panel.get_by_role("button", name="Stop")
    inside = "n => { const box = n.getBoundingClientRect(); const [x, y] = [box.x + 9, box.y + 9];"
    assert stop.evaluate(f"{inside} return n.contains(document.elementFromPoint(x, y)); }}")
    run.let_go()
    run.ended()


def test_selecting_a_rank_shows_only_its_output(notebook: LabNotebook) -> None:
    run = flow(notebook, "-n 3", TALK)
    for rank in range(3):
        expect(run.rows(f"plum of {rank}")).to_be_visible()
    run.rank(1).click()
    expect(run.rank(1)).to_have_attribute("aria-selected", "true")
    expect(run.panel.get_by_role("heading", name="Output of rank 1")).to_be_visible()
    expect(run.rows("of 0")).to_have_count(0)
    expect(run.rows("of 1")).to_have_count(6)
    run.rank(1).press("ArrowRight")
    notebook.page.keyboard.press("Enter")
    expect(run.rows("of 2")).to_have_count(6)
    expect(run.rows("of 1")).to_have_count(0)
    notebook.page.keyboard.press("Escape")
    expect(run.rows("plum")).to_have_count(3)
    run.let_go()
    run.ended()


def test_ctrl_s_saves_the_notebook_after_a_click_on_a_rank(notebook: LabNotebook) -> None:
    run = flow(notebook, "-n 2", TALK)
    run.rank(1).click()
    run.rank(1).press("d")
    run.rank(1).press("d")  # would delete the cell
    notebook.js("panel.context.saveState.connect((_, state) => (window.saved = state)) && null")
    run.rank(1).press("Control+s")
    eventually(lambda: notebook.js("window.saved === 'completed'"))
    run.let_go()
    run.ended()


def test_output_is_filtered_by_text_and_stream(notebook: LabNotebook) -> None:
    run = flow(notebook, "-n 2", TALK)
    for rank in range(2):
        expect(run.rows(f"plum of {rank}")).to_be_visible()
    search = run.panel.get_by_role("searchbox", name="Filter output")
    search.fill("APPLE")
    expect(run.rows("apple 3")).to_have_count(2)
    expect(run.rows("pear")).to_have_count(0)
    expect(run.panel.locator(".xn-matches")).to_contain_text("2")
    search.fill("")
    expect(run.rows("pear")).to_have_count(8)
    run.panel.get_by_role("combobox", name="Stream").select_option("err")
    expect(run.rows("pear")).to_have_count(0)
    expect(run.rows("plum")).to_have_count(2)
    run.let_go()
    run.ended()


# ---------------------------------------------------------------- stop and stacks


def test_stop_button_stops_run_while_its_cell_blocks(notebook: LabNotebook) -> None:
    run = flow(notebook, "-n 2", ENDLESS)
    for rank in range(2):
        expect(run.rows(f"begun {rank}")).to_be_visible()
    run.panel.get_by_role("button", name="Stop", exact=True).click()
    run.ended()
    expect(run.saved).to_contain_text("Stopped by the Stop button")
    expect(run.output).not_to_contain_text("KeyboardInterrupt")
    works(notebook)


def test_stacks_button_shows_lines_of_deadlocked_ranks(notebook: LabNotebook) -> None:
    run = flow(notebook, "-n 2", STUCK)
    run.in_phase("waiting", 2)  # rank 0 in the collective, rank 1 in time.sleep
    expect(run.rows("round").first).to_be_visible()
    run.panel.get_by_role("button", name="Stacks", exact=True).click()
    stacks = run.panel.get_by_role("region", name="Stacks")
    expect(stacks).to_have_attribute("data-state", "answered")
    told = stacks.inner_text()
    of_0, of_1 = (told.index(words) for words in ("xm.all_reduce(", "time.sleep(0.05)  # the loop"))
    assert (told.index("rank 0") < of_0 < told.index("rank 1")) == (of_0 < of_1)
    notebook.interrupt()
    run.ended()
    expect(run.saved).to_contain_text("Stopped by an interrupt")
    works(notebook)


def test_panel_shows_error_of_three_of_four_ranks(notebook: LabNotebook) -> None:
    run = flow(notebook, "-n 4 --grace 300", FAIL)
    run.in_phase("failed", 1)
    run.let_go("others")
    run.in_phase("failed", 3)
    trouble = run.panel.get_by_role("region", name="Errors and notes")
    expect(trouble.locator("details").first).to_have_attribute("open", "")
    expect(trouble).to_contain_text("ranks 0, 2, 3")
    for text in ("Cell In[", "line 12"):
        expect(trouble.locator("pre").first).to_contain_text(text)
    told = "ValueError: bad batch on 2"
    expect(run.panel.locator(".xn-headline")).to_contain_text(told)
    expect(trouble.locator("summary").first).not_to_contain_text(told)  # the headline shows it
    run.let_go("fine")
    run.ended()
    for text in ("rank 2 first", "line 12", "raise ValueError(f", "bad batch on 2"):
        expect(run.saved).to_contain_text(text)
    expect(run.output).to_contain_text("RunFailed")


# ---------------------------------------------------------------- alongside other work


def test_background_run_does_not_block_other_cells(notebook: LabNotebook) -> None:
    run = flow(notebook, "-n 2 --bg -o behind", TRAIN)
    notebook.done(run.cell)
    run.in_phase("waiting", 2)
    works(notebook)
    expect(run.rows("hello from 1")).to_be_visible()
    run.let_go()
    expect(run.saved.filter(has_text="2 ranks finished")).to_be_visible()
    expect(run.panel).to_have_count(0)
    assert "True" in notebook.text(notebook.execute("behind.wait(); behind.ok"))


def test_reload_shows_saved_snapshot_with_call_for_the_result(notebook: LabNotebook) -> None:
    notebook.execute("from xla_nb.views.panel import view\nsaves, view._SAVE = view._SAVE, 0.5")
    notebook.execute("from xla_nb.views.panel import view\nloads, view._LOADS = view._LOADS, 60")
    run = flow(notebook, "-n 2", TRAIN)
    expect(run.rows("hello from 1")).to_be_visible()
    snapshot = run.output.locator("[class^=xn-saved-]")
    expect(snapshot).to_contain_text("2 ranks waiting")
    expect(snapshot).to_be_hidden()
    notebook.save()
    notebook.reload()
    expect(snapshot.get_by_text("2 ranks waiting").first).to_be_visible()
    asked = r'import xla_nb; xla_nb\.open_run\("\S+"\)'
    told = re.compile(rf"Snapshot of a run in progress\. See {asked} for the result")
    expect(snapshot).to_contain_text(told)
    expect(run.output.get_by_text(re.compile("widget", re.IGNORECASE))).to_be_hidden()
    call = re.search(asked, snapshot.text_content() or "")
    run.let_go()
    notebook.idle()
    brought_back = run.output.locator(".lm-Panel.jp-OutputArea-output > .lm-Widget")
    expect(brought_back).to_be_attached()
    assert not run.panel.count()
    expect(snapshot.get_by_text("2 ranks finished").first).to_be_visible()
    assert "Saved while" not in run.output.inner_text()
    assert call is not None
    assert "2 ranks finished" in notebook.text(notebook.execute(call[0]))
    notebook.execute("view._SAVE, view._LOADS = saves, loads")


@pytest.mark.leaves("processes")  # of a kernel restarted by an earlier test
def test_panel_of_background_run_works_after_reload(restarted: LabNotebook) -> None:
    run = flow(restarted, "-n 2 --bg -o behind", TRAIN)
    expect(run.rows("hello from 1")).to_be_visible()
    restarted.save()
    restarted.reload()
    run.panel.scroll_into_view_if_needed()  # the front end restores its widget
    expect(run.rows("hello from 1")).to_be_visible()
    works(restarted)
    run.let_go()
    expect(run.panel).to_have_count(0)
    assert "bye from 1" in restarted.text(restarted.execute("behind"))


@pytest.mark.leaves("temporary", "processes")  # of the old and the new kernel
def test_kernel_restart_freezes_panel_without_interrupting_new_kernel(
    restarted: LabNotebook,
) -> None:
    run = flow(restarted, "-n 2", ENDLESS)
    run.in_phase("waiting", 2)
    restarted.restart()
    headline = run.panel.locator(".xn-headline")
    expect(headline).to_have_text(re.compile(r"^Kernel restarted; last update \d\d:\d\d:\d\d$"))
    expect(run.panel).to_contain_text('xla_nb.open_run("')
    stop = run.panel.locator("[data-action=stop]")
    expect(stop).to_be_disabled()
    expect(stop).to_have_text("Stop")
    expect(run.panel.get_by_role("button", name="Stacks")).to_be_disabled()
    clock = run.panel.locator(".xn-sub").inner_text()
    assert restarted.text(restarted.execute("1 + 1")) == "2"
    assert run.panel.locator(".xn-sub").inner_text() == clock


@pytest.mark.slow
@pytest.mark.leaves("temporary", "processes")  # of the old and the new kernel
def test_restart_missed_by_widget_manager_freezes_panel_shown_after_reload(
    restarted: LabNotebook,
) -> None:
    restarted.execute("%xla_start -n 2")
    restarted.save()
    restarted.reload()
    panel = restarted.output(restarted.execute("%xla_ranks")).locator(".xn-panel")
    headline = panel.locator(".xn-headline")
    expect(headline).to_have_text("2 live ranks, idle")
    panel.evaluate(MISSES)
    restarted.restart()
    expect(headline).to_have_text(re.compile(r"^Kernel restarted; last update \d\d:\d\d:\d\d$"))
    expect(panel.locator("[data-action=stop]")).to_be_disabled()
    again = restarted.execute("%load_ext xla_nb\n%xla_start -n 1")
    expect(restarted.output(again).locator(".xn-headline")).to_have_text("1 live rank, idle")


@pytest.mark.slow
def test_64_ranks_are_tiles(notebook: LabNotebook) -> None:
    run = flow(notebook, "-n 64", "print('here', rank, flush=True)\nhold()\n")
    run.in_phase("waiting", 64)
    expect(run.panel.locator(".xn-tiles")).to_have_count(1)
    run.rank(40).click()
    expect(run.rows("here 40")).to_be_visible()
    expect(run.panel.locator(".xn-detail")).to_contain_text("rank 40")
    run.let_go()
    run.ended()
    expect(run.saved).to_contain_text("64 ranks finished")


#: A run of 256 ranks with real files and events but no processes, too many for a test machine.
#: Everything that displays it is real, from the kernel's loop to the page.
CROWD = """\
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.support.run_double import Run
from xla_nb.messages import events
from xla_nb.views import loop
from xla_nb.views.panel.view import PanelView

class Crowd(Run):
    done = property(lambda self: Path("go-{number}").exists())

Path("crowd").mkdir()
run = Crowd(Path("crowd"), ranks=256)
for rank in range(256):
    started = events.RankStarted(rank=rank, pid=rank, device="xla:0")
    run.state.apply(started)
    run.prints(rank, f"here {{rank}}\\n")
for rank in (77, 200):
    run.state.apply(events.RankFailed(rank=rank, kind="ValueError", message=f"bad {{rank}}",
                                      text="ValueError", place="Cell In[3], line 5", where="w"))
loop.follow(run, PanelView(run))
"""


def test_256_ranks_are_tiles_with_failed_ranks_first(notebook: LabNotebook) -> None:
    number = next(NUMBERS)
    root = str(Path(__file__).parents[2])
    run = started(notebook, CROWD.format(root=root, number=number), number)
    run.in_phase("running", 254)
    run.in_phase("failed", 2)
    expect(run.panel.locator(".xn-tiles")).to_have_count(1)
    first = [run.panel.locator("[role=option]").nth(place) for place in range(2)]
    assert [card.get_attribute("data-rank") for card in first] == ["77", "200"]  # failed first
    run.rank(200).click()
    expect(run.panel.get_by_role("region", name="Errors and notes")).to_contain_text("bad 200")
    expect(run.rows("here 200")).to_be_visible()
    run.let_go()
    run.ended()
    expect(run.saved).to_contain_text("256 ranks")


@pytest.mark.slow
def test_panel_works_in_notebook_7(lab: Lab) -> None:
    with lab.open(["%load_ext xla_nb"], front_end="notebook") as notebook:
        notebook.run(0)
        notebook.done(0)
        own = list(notebook.errors)  # Notebook 7 logs some at startup
        run = flow(notebook, "-n 2", TRAIN)
        run.in_phase("waiting", 2)
        expect(run.rows("hello from 1")).to_be_visible()
        run.let_go()
        run.ended()
        expect(run.saved).to_contain_text("2 ranks finished")
        assert notebook.errors == own


# ---------------------------------------------------------------- the kernel's status


def test_lab_shows_kernel_busy_while_cell_runs(notebook: LabNotebook) -> None:
    check_busy_status(notebook, "lab")


@pytest.mark.slow
def test_notebook_7_shows_kernel_busy_while_cell_runs(lab: Lab) -> None:
    with lab.open(["%load_ext xla_nb"], front_end="notebook") as notebook:
        notebook.run(0)
        notebook.done(0)
        check_busy_status(notebook, "notebook")


def check_busy_status(notebook: LabNotebook, front_end: Literal["lab", "notebook"]) -> None:
    run = flow(notebook, "-n 2", "hold()")
    run.in_phase("waiting", 2)
    notebook.js(f"({STATUS_SHOWN})(panel, () => {STATUSES[front_end]})")
    for rank in (0, 1, 0):  # each click sends a message to the kernel
        run.rank(rank).click()
    notebook.page.wait_for_function("window.answers > 2 && window.shown.length")
    assert notebook.js("window.shown") == ["busy"]
    run.let_go()
    run.ended()
    notebook.page.wait_for_function("window.shown.at(-1) === 'idle'")
    notebook.page.evaluate("clearInterval(window.looking)")


# ---------------------------------------------------------------- hostile output and saved runs


@pytest.fixture(scope="module")
def hostile(notebook: LabNotebook) -> Flow:
    """An ended run of two ranks whose output attacks the page, with its page open."""
    watch(notebook.page)
    run = flow(notebook, "-n 2", HOSTILE)
    for rank in range(2):
        row = run.panel.locator(f'.xn-row[data-rank~="{rank}"]')
        expect(row.filter(has_text="the end")).to_be_visible()
        expect(row.filter(has_text="<script>window.hacked=1</script>")).to_have_count(1)
        expect(row.filter(has_text="<script>window.hacked=2</script>")).to_have_count(1)
    unharmed(notebook.page, run.panel)
    run.let_go()
    run.ended()
    return run


@pytest.fixture(scope="module")
def saved_cell(hostile: Flow) -> NotebookNode:
    """A notebook with only that cell."""
    alone = of_cells([])
    alone.cells.append(saved(hostile.notebook, hostile.cell))
    return alone


def watch(page: Page) -> None:
    """Count the dialogs that the page opens."""
    page.evaluate("window.dialogs = 0")
    page.on("dialog", lambda dialog: (page.evaluate("window.dialogs++"), dialog.dismiss()))


def unharmed(page: Page, shown: Locator) -> None:
    """Check that the output is text: it creates no element, runs no script, changes no title."""
    expect(shown).to_contain_text("<script>window.hacked=1</script>")
    expect(shown).to_contain_text('<img src=x onerror="window.hacked=1">')
    text = shown.inner_text()
    for inert in ("nul [", "title [", "cherry", "bytes [\ufffd\ufffd]", "yyyyyyyyyy"):
        assert inert in text, inert
    assert not {"\0", "\x1b", "\x07", "\u202e"} & set(text)
    expect(shown.locator("script")).to_have_count(0)
    expect(shown.locator("img[src=x]")).to_have_count(0)
    assert page.evaluate("[typeof window.hacked, window.dialogs ?? 0]") == ["undefined", 0]
    assert "owned" not in page.title()


def test_hostile_output_is_harmless_on_the_live_page(hostile: Flow) -> None:
    unharmed(hostile.notebook.page, hostile.saved)
    assert not any("hacked" in error for error in hostile.notebook.errors)


@pytest.mark.parametrize("trusted", [False, True], ids=["untrusted", "trusted"])
def test_saved_run_is_shown_without_a_kernel(
    saved_cell: NotebookNode, lab: Lab, viewer: LabNotebook, trusted: bool
) -> None:
    name = lab.write(saved_cell, trusted=trusted)
    viewer.turn_to(name)
    watch(viewer.page)
    run = Flow(viewer, cell=0, number=next(NUMBERS))
    assert viewer.trusted(run.cell) == trusted
    expect(run.saved).to_contain_text("failed")
    unharmed(viewer.page, run.saved)
    assert lab.kernels(name) == []


@pytest.mark.slow
def test_saved_run_is_shown_in_nbconvert_html(
    saved_cell: NotebookNode, lab: Lab, chromium: BrowserContext, tmp_path: Path
) -> None:
    name = lab.write(saved_cell)
    command = [sys.executable, "-m", "nbconvert", "--to", "html", "--output-dir", tmp_path]
    subprocess.run([*command, lab.root / name], check=True, capture_output=True, timeout=120)
    page = chromium.new_page()
    try:
        dialogs: list[str] = []
        page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
        page.route("http*://**", lambda route: route.abort())  # scripts of the exported page
        page.goto(next(tmp_path.glob("*.html")).as_uri(), wait_until="domcontentloaded")
        shown = page.locator(".jp-Cell").first.locator(".jp-RenderedHTMLCommon").first
        unharmed(page, shown)
        assert dialogs == []
        page.emulate_media(media="print")  # pages are filled, and blocks are not split
        output = page.locator(".jp-OutputArea-child").filter(has=page.locator(".xn-paper"))
        expect(output).to_have_css("break-inside", "auto")
        expect(output.locator(".xn-paper > div > div").first).to_have_css("break-inside", "avoid")
        expect(output.locator(".xn-paper > div > div").first).to_have_css("break-after", "avoid")
    finally:
        page.close()

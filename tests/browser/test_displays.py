"""Displays and questions of ranks in JupyterLab: live, saved, and opened untrusted."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.lab import Lab, LabNotebook
from tests.browser.test_flows import Flow, flow, saved
from tests.support.installed import need

FIGURES = """\
import matplotlib.pyplot as plt
import pandas as pd
from IPython.display import HTML, Markdown, display
figure, axes = plt.subplots(figsize=(4, 2.4))
axes.plot([rank, 2, 1, 4 * rank], label=f"rank {rank}")
axes.legend()
plt.show()
display(HTML(f"<em onclick='window.hacked=1'>html of {rank}</em>"))
if rank == 1:
    display(Markdown("some **bold words** of rank 1"))
print("drawn by", rank, flush=True)
hold()
return pd.DataFrame({"step": [1, 2, 3], "loss": [0.9, 0.5, 0.2 + rank]})
"""
ASK = """\
if rank == 1:
    name = input("your name? ")
    print("hello", name, flush=True)
hold()
"""
WITHDRAW = """\
if rank == 1:
    import signal, threading
    def late(*_): raise TimeoutError
    signal.signal(signal.SIGALRM, late)
    def end(main=threading.get_ident()):
        hold()
        signal.pthread_kill(main, signal.SIGALRM)
    threading.Thread(target=end).start()
    try:
        input("in time? ")
    except TimeoutError:
        print("gave up", flush=True)
hold("end")
"""

DOLLARS = """\
from IPython.display import HTML, display
print("pays $3 and $4", flush=True)
display(HTML("<p>root $a^2$</p>"))
hold()
raise ValueError("costs $1 and $2")
"""


def pictures_are_drawn(run: Flow, ranks: int) -> None:
    """Check that each rank has a picture below its name."""
    pictures = run.output.locator("img[src^='data:image/png']")
    expect(pictures).to_have_count(ranks)
    for rank in range(ranks):
        expect(run.output.locator("b", has_text=f"rank {rank}").first).to_be_visible()
        expect(pictures.nth(rank)).to_be_visible()
        assert pictures.nth(rank).evaluate("image => image.naturalWidth") > 300


def test_figures_of_four_ranks_are_shown_live_and_in_saved_cell(
    notebook: LabNotebook, lab: Lab, viewer: LabNotebook
) -> None:
    need("matplotlib")
    run = flow(notebook, "-n 4", FIGURES)
    for rank in range(4):
        expect(run.rows(f"drawn by {rank}")).to_be_visible()
    pictures_are_drawn(run, 4)
    expect(run.output.locator("strong", has_text="bold words")).to_be_visible()
    run.let_go()
    run.ended()
    pictures_are_drawn(run, 4)
    expect(run.output.locator("th", has_text="loss").first).to_be_visible()
    outputs = saved(notebook, run.cell).outputs
    texts = [output.data["text/plain"] for output in outputs if "data" in output]
    assert texts[texts.index("[3]") + 1] == "<Figure size 400x240 with 1 Axes>"
    assert notebook.errors == []
    viewer.turn_to(lab.write(lab.read(notebook.name)))
    assert not viewer.trusted(run.cell)
    again = Flow(viewer, run.cell, run.number)
    again.output.scroll_into_view_if_needed()
    pictures_are_drawn(again, 4)
    again.output.locator("em", has_text="html of 0").click()
    assert viewer.page.evaluate("window.hacked") is None


def test_rank_asks_in_its_cell(notebook: LabNotebook) -> None:
    run = flow(notebook, "-n 2", ASK)
    box = run.output.locator("input.jp-Stdin-input")
    expect(run.output.locator(".jp-Stdin-prompt")).to_have_text("rank 1 asks: your name? ")
    box.fill("Ada")
    box.press("Enter")
    expect(run.rows("hello Ada")).to_be_visible()
    run.let_go()
    run.ended()


def test_stop_ends_a_question(notebook: LabNotebook) -> None:
    run = flow(notebook, "-n 2", ASK)
    expect(run.output.locator(".jp-Stdin-prompt")).to_be_visible()
    run.panel.get_by_role("button", name="Stop").click()
    notebook.done(run.cell, timeout=60)
    assert "Stopped by the Stop button" in notebook.text(run.cell)
    notebook.execute("'and the next cell runs'")


def test_withdrawn_question_does_not_block_the_next_cell(notebook: LabNotebook) -> None:
    run = flow(notebook, "-n 2", WITHDRAW)
    box = run.output.locator("input.jp-Stdin-input")
    expect(box).to_be_enabled()
    run.let_go()
    expect(run.rows("gave up")).to_be_visible()
    expect(box).to_be_disabled()
    run.let_go("end")
    run.ended()
    notebook.execute("'and the next cell runs'")


def test_dollar_signs_mean_math_only_in_displays(notebook: LabNotebook) -> None:
    run = flow(notebook, "-n 2", DOLLARS)
    expect(run.rows("pays $3 and $4")).to_be_visible()
    run.let_go()
    run.ended()
    expect(run.output.locator("mjx-container")).to_have_count(1)
    expect(run.output.locator("p mjx-container")).to_have_count(1)
    expect(run.output.get_by_text("ValueError: costs $1 and $2").first).to_be_visible()
    expect(run.output.get_by_text("pays $3 and $4").first).to_be_visible()

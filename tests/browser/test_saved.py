"""Saved runs in JupyterLab without a kernel: their size and readability."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from nbformat import NotebookNode, v4

from tests.browser.lab import DARK, LIGHT, Lab, LabNotebook, of_cells
from xla_nb.monitor.activity import Slot
from xla_nb.monitor.snapshot import Card, Diagnosis, Excerpt, Series, Snapshot, Trouble
from xla_nb.record.sample import Sample
from xla_nb.views import rendering

NOW = 1_763_726_585.0
LANE = tuple(Slot(int(NOW) - n, running=0.7, others=0.2, data=0.1) for n in range(60))
FINISHED = Snapshot(
    run="20261121-223901-abcdef",
    cell="Cell In[3]",
    headline="4 ranks finished",
    record="/home/me/.local/state/xla_nb/runs/20261121-223901-abcdef",
    now=NOW,
    started=NOW - 1.9,
    elapsed=1.9,
    ok=True,
    simulated=True,
    cards=tuple(
        Card(
            rank,
            "finished",
            NOW - 0.1 * rank,
            "xla:0",
            pid=4000 + rank,
            step=0.08 + rank / 100,
            waits=0.28,
            lane=LANE,
            sample=Sample(at=NOW, since=NOW, memory=(512 + rank) << 20, compiles=2),
        )
        for rank in range(4)
    ),
    excerpts=tuple(Excerpt(rank, "out", (f"rank {rank}: done",), 0, (), "") for rank in range(4)),
    notices=("Removed TPU_PROCESS_ADDRESSES=local: it breaks launches",),
)
CHARTED = replace(
    FINISHED,
    diagnosis=Diagnosis(f"Rank 2 is the slowest{', and the others wait for it' * 5}", "warning"),
    series=(
        Series("loss", {r: [(float(x), 1 / (1 + x + r)) for x in range(50)] for r in range(4)}),
    ),
    excerpts=(
        Excerpt(
            0, "err", ("\x1b[31mred\x1b[0m \x1b[2mdim\x1b[0m \x1b[7minverse\x1b[0m",), 0, (), ""
        ),
    ),
)
FAILED = replace(
    FINISHED,
    ok=False,
    headline="Rank 2 failed at Cell In[3], line 7: ValueError: boom",
    cards=tuple(
        replace(card, phase="failed" if card.rank == 2 else "stopped") for card in FINISHED.cards
    ),
    troubles=(
        Trouble((2,), True, "ValueError: boom", "", "Traceback\nValueError: boom", told=True),
    ),
)
MANY = replace(FINISHED, cards=tuple(replace(FINISHED.cards[0], rank=n) for n in range(64)))
SHOWN = [FINISHED, CHARTED, FAILED, MANY]

#: Returns the contrast and size in pixels of each visible text.
READ = """all => {
  const parse = colour => {
    const numbers = colour.match(/[\\d.]+/g).map(Number);
    return numbers.length < 4 ? [...numbers, 1] : numbers;
  };
  const over = (top, below) =>
    [0, 1, 2].map(i => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
  const light = colour => colour.slice(0, 3).map(part => part / 255)
    .map(part => part <= .04045 ? part / 12.92 : ((part + .055) / 1.055) ** 2.4)
    .reduce((sum, part, i) => sum + part * [.2126, .7152, .0722][i], 0);
  const look = element => {
    let ground = [255, 255, 255, 1], opacity = 1;
    const above = [];
    for (let one = element; one; one = one.parentElement) above.unshift(getComputedStyle(one));
    for (const style of above) {
      ground = over(parse(style.backgroundColor), ground);
      opacity *= Number(style.opacity);
    }
    const own = above.at(-1), ink = parse(own.color);
    const seen = over([...ink.slice(0, 3), ink[3] * opacity], ground);
    const [dark, bright] = [light(seen), light(ground)].sort((a, b) => a - b);
    return { contrast: (bright + .05) / (dark + .05), size: parseFloat(own.fontSize) };
  };
  return all.flatMap(root => {
    const found = [], texts = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      const text = texts.currentNode.textContent;
      if (text.trim()) found.push({ text, ...look(texts.currentNode.parentElement) });
    }
    return found;
  });
}"""


def kept(*snapshots: Snapshot) -> NotebookNode:
    """A notebook with a saved cell per snapshot, unfolded except in the first cell."""
    made = of_cells([f"# {number}" for number in range(len(snapshots))])
    for number, (cell, snapshot) in enumerate(zip(made.cells, snapshots, strict=True)):
        html = rendering.render_html(snapshot)
        forms = {"text/html": html.replace("<details", "<details open") if number else html}
        cell.outputs = [v4.new_output("display_data", data=forms)]
        cell.execution_count = number + 1
    return made


@pytest.fixture(scope="module")
def untrusted(lab: Lab, viewer: LabNotebook) -> LabNotebook:
    viewer.turn_to(lab.write(kept(*SHOWN)))
    return viewer


def drawn(notebook: LabNotebook, cell: int) -> Any:
    return notebook.output(cell).locator(".jp-RenderedHTMLCommon > div").first


def sized(notebook: LabNotebook, width: int) -> None:
    """Give outputs this width. Retry, because the front end lays out asynchronously."""
    for _ in range(200):
        own = drawn(notebook, 0).bounding_box()["width"]
        if abs(own - width) < 2:
            return
        whole = notebook.page.viewport_size["width"] + round(width - own)
        notebook.page.set_viewport_size({"width": max(800, whole), "height": 900})
        notebook.page.evaluate(
            "new Promise(done => requestAnimationFrame(() => setTimeout(done, 50)))"
        )
    raise AssertionError(f"outputs are {own} wide, not {width}")


def test_run_with_one_line_per_rank_is_at_most_140_pixels_high(untrusted: LabNotebook) -> None:
    sized(untrusted, 940)
    assert drawn(untrusted, 0).bounding_box()["height"] <= 140


def test_open_table_of_ranks_has_full_width_below_title(untrusted: LabNotebook) -> None:
    sized(untrusted, 940)
    whole, table, title = drawn(untrusted, 1).evaluate(  # in one call, because the page may scroll
        "root => [root, root.querySelector('details'), root.querySelector('h4')]"
        ".map(node => node.getBoundingClientRect().toJSON())"
    )
    assert table["width"] > whole["width"] - 40
    assert table["y"] >= title["bottom"] - 2


def test_single_chart_uses_the_available_width(untrusted: LabNotebook) -> None:
    sized(untrusted, 940)
    assert drawn(untrusted, 1).locator("figure").bounding_box()["width"] > 600


def test_saved_runs_fit_a_narrow_page(untrusted: LabNotebook) -> None:
    sized(untrusted, 700)
    for cell in range(len(SHOWN)):
        own = drawn(untrusted, cell)
        assert own.evaluate("box => box.scrollWidth <= box.clientWidth"), cell


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_all_text_is_large_and_has_enough_contrast(untrusted: LabNotebook, theme: str) -> None:
    untrusted.theme(theme)
    found = untrusted.page.locator(".jp-RenderedHTMLCommon").evaluate_all(READ)
    assert len(found) > 200
    assert [one for one in found if one["contrast"] < 4.5 or one["size"] < 12] == []


def test_screen_reader_finds_headings_lists_and_table(untrusted: LabNotebook) -> None:
    shown = drawn(untrusted, 1)
    assert shown.get_by_role("heading", level=4).count() == 1
    assert shown.get_by_role("heading", name="Output", level=5).count() == 1
    assert shown.get_by_role("list").count() == 1
    heads = shown.get_by_role("columnheader").all_inner_texts()
    assert heads[:6] == ["rank", "state", "", "whole run", "loss", "per sync"]
    assert shown.get_by_role("row").count() == 5
    chart = shown.get_by_role("img").filter(visible=True).last
    assert (chart.get_attribute("alt") or "").startswith("Chart. loss: ")


def test_title_is_not_in_table_of_contents(untrusted: LabNotebook) -> None:
    untrusted.command("toc:show-panel")
    contents = untrusted.page.locator(".jp-TableOfContents")
    contents.wait_for()
    assert "ranks finished" not in contents.inner_text()

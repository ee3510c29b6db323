"""Long sentences in JupyterLab wrap only between words."""

from collections.abc import Iterator

from tests.browser.lab import LabNotebook

FAILS = """\
%%xla_spawn -n 2 --view {view} --grace {grace}
import time
def train(rank):
    if rank == 1:
        raise ValueError({words!r} * 3 + "end")
    time.sleep(60)
"""
WORDS = "the shards of this rank have another length than those which all the others have read; "
REFUSED = """\
opened = open("/etc/hostname")
import xla_nb
xla_nb.spawn(opened.read)"""
# Finds words that wrap although they would fit on a line.
BROKEN = """output => {
    const broken = [];
    const walker = document.createTreeWalker(output, NodeFilter.SHOW_TEXT);
    for (let node; (node = walker.nextNode());) {
        if (!node.parentElement.checkVisibility()) continue; // in a fold
        const width = node.parentElement.closest("pre, div, td, li")?.clientWidth ?? 0;
        for (const { index, 0: word } of node.data.matchAll(/\\S+/g)) {
            const range = document.createRange();
            range.setStart(node, index);
            range.setEnd(node, index + word.length);
            const lines = new Set([...range.getClientRects()].map(({ top }) => Math.round(top)));
            if (lines.size > 1 && word.length < 40 && width > 0) broken.push(word);
        }
    }
    return broken;
}"""


def wide(notebook: LabNotebook, *widths: int) -> Iterator[int]:
    """Set the page to each of these widths in turn."""
    try:
        for width in widths:
            notebook.page.set_viewport_size({"width": width, "height": 900})
            notebook.page.evaluate("() => new Promise(drawn => requestAnimationFrame(drawn))")
            yield width
    finally:
        notebook.page.set_viewport_size({"width": 1280, "height": 900})


def broken(notebook: LabNotebook, cell: int) -> list[str]:
    return list(notebook.output(cell).evaluate(BROKEN))


def test_errors_wrap_only_between_words(notebook: LabNotebook) -> None:
    def broken_at_any_width(cell: int) -> list[str]:
        return [word for _ in wide(notebook, 1280, 1100) for word in broken(notebook, cell)]

    live = notebook.add(FAILS.format(view="panel", grace=4, words=WORDS))
    notebook.run(live)
    notebook.wait_for("Rank 1 failed", live)
    assert broken_at_any_width(live) == []
    notebook.done(live)
    assert "another length" in notebook.text(live)
    assert broken_at_any_width(live) == []
    refused = notebook.execute(REFUSED)
    assert "open file" in notebook.text(refused)
    assert broken_at_any_width(refused) == []


# The same for dates and for numbers with their units.
PARTED = BROKEN.replace("/\\S+/g", r"/\d (?:s|ms|min|[KMGT]iB|%)(?!\w)|\d{4}-\d\d-\d\d \d\d:\d\d/g")
RETURNS = """\
%%xla_spawn -n 4 --view panel
import time
def train(rank):
    time.sleep(0.2)
    return rank
"""


def test_numbers_do_not_wrap_before_their_units(notebook: LabNotebook) -> None:
    ran, settings = notebook.execute(RETURNS), notebook.execute("%xla_config")
    output = notebook.output(ran)
    notebook.wait_for("4 ranks finished", ran)
    output.evaluate("output => output.querySelectorAll('details').forEach(d => d.open = true)")
    for width in wide(notebook, 1000, 760, 620):
        assert output.evaluate(PARTED) == [], width
        if width == 1000:
            assert broken(notebook, settings) == []

"""The panel in JupyterLab in Chromium: the time until it opens, and the cost of a flood."""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from benchmarks import Row
from benchmarks.client import ROOT, CellFailed

sys.path.insert(0, str(ROOT / "tests"))

from browser.lab import NAMES, Lab, LabNotebook, browser  # type: ignore[import-not-found]

ROUNDS = 7
WARM = 4000  # ms until the size of the page is stable
FLOODS = {  # streams: (lines per second, minimum frames per second)
    8: (30_000, 55),
    256: (100_000, 50),
}
#: Hosts of the crowd, ranks on each, minimum frames per second, maximum share of a core.
CROWD = (256, 4, 50, 0.5)
LAUNCH = "%%xla_spawn -n 4\nimport time\ntime.sleep(1.5)"
WATCH = f"""\
import json, sys
sys.path.insert(0, {str(ROOT)!r})
from benchmarks import crowd, flood
print(json.dumps(CALL))
"""
#: Records when a panel first appears in the page.
LOOK = """(
    window.seen = null,
    new MutationObserver((_, self) => {
        if (!document.querySelector(".xn-panel")) return;
        window.seen = performance.now();
        self.disconnect();
    }).observe(document.body, { childList: true, subtree: true }),
    window.started = performance.now(),
    null
)"""
#: Counts frames, and in each one compares the time in the last line shown with the clock.
FRAMES = """async (milliseconds) => {
    const lags = [], began = performance.now();
    let frames = 0;
    await new Promise((done) => {
        const frame = (now) => {
            frames += 1;
            const rows = document.querySelectorAll(".xn-row .xn-text");
            const at = parseFloat(rows[rows.length - 1]?.textContent);
            if (at > 1e9) lags.push(Date.now() - at * 1000);
            now - began < milliseconds ? requestAnimationFrame(frame) : done();
        };
        requestAnimationFrame(frame);
    });
    lags.sort((a, b) => a - b);
    return { fps: frames / ((performance.now() - began) / 1000),
             lag: lags[Math.floor(lags.length / 2)], late: lags[Math.floor(lags.length * 0.95)] };
}"""


def rows(rounds: int = ROUNDS) -> Iterator[Row]:
    """Opening, then each flood: frames, lag, the kernel's share, messages, the page's memory."""
    seconds = max(10, 3 * rounds)  # of a flood
    with _notebook() as notebook:
        opened = statistics.median(_openings(notebook, rounds))
        yield Row("panel in the page / 150 ms", opened, 150, "ms", aim=1)
        for streams, (rate, least) in FLOODS.items():
            figures = watched(notebook, f"flood.watch({streams}, {rate}, {seconds})", seconds)
            yield from _aims(
                f"{streams} streams, {figures['lines']:,.0f} lines/s", figures, least, 0.2
            )
    hosts, each, least, most = CROWD
    with _notebook() as notebook:  # a new one: a panel is drawn only while visible
        figures = watched(notebook, f"crowd.watch({hosts}, {each}, {seconds})", seconds)
    yield from _aims(f"{hosts} hosts, {hosts * each:,} ranks", figures, least, most)


def _aims(where: str, figures: dict[str, float], least: int, most: float) -> Iterator[Row]:
    yield Row(f"{where}: {least} frames/s / those shown", least, figures["fps"], "", aim=1)
    yield Row(f"{where}: lag of the last line / 100 ms", figures["lag"], 100, "ms", aim=1)
    yield Row(f"{where}: kernel's share / {most} of a core", figures["share"], most, "", aim=1)
    yield Row(f"{where}: messages a second / 20", figures["messages"], 20, "", aim=1)
    yield Row(f"{where}: heap, 2nd half / 1st half", figures["end"], figures["half"], "MB")


@contextmanager
def _notebook() -> Iterator[LabNotebook]:
    if not any(map(shutil.which, NAMES)):
        raise CellFailed(f"No browser found on PATH (tried {', '.join(NAMES)}).")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as home:
        chromium = browser(playwright, Path(home), "--enable-precise-memory-info")
        lab = Lab(chromium, Path(home))
        try:
            with lab.open(["%load_ext xla_nb"]) as notebook:
                notebook.run(0)
                notebook.done(0)
                notebook.execute("%%xla_spawn -n 1 --view none\ndef warm(rank): pass")
                yield notebook
        finally:
            lab.close()
            chromium.close()


def _openings(notebook: LabNotebook, rounds: int) -> Iterator[float]:
    """Milliseconds from running a cell until its panel is in the page."""
    for _ in range(rounds):
        cell = notebook.add(LAUNCH)
        notebook.js(LOOK)
        notebook.run(cell)
        notebook.page.wait_for_function("window.seen")
        yield notebook.page.evaluate("window.seen - window.started")
        notebook.done(cell)


def watched(notebook: LabNotebook, call: str, seconds: int) -> dict[str, float]:
    """The cost to page and kernel of a simulated run that `call` shows for `seconds` seconds."""
    cell = notebook.add(WATCH.replace("CALL", call))
    notebook.run(cell)
    panel = notebook.output(cell).locator(".xn-panel")
    panel.wait_for(state="attached")
    panel.evaluate("panel => panel.scrollIntoView()")  # it draws only while visible
    notebook.page.locator(".xn-row .xn-text").first.wait_for()
    notebook.page.wait_for_timeout(WARM)
    half = seconds * 1000 / 2 - WARM
    first = notebook.page.evaluate(FRAMES, half)
    heap = {"half": _heap(notebook)}
    second = notebook.page.evaluate(FRAMES, half)
    heap["end"] = _heap(notebook)
    notebook.done(cell)
    kernel: dict[str, Any] = json.loads(notebook.text(cell).strip().splitlines()[-1])
    if kernel["lost"]:
        raise CellFailed(f"{kernel['lost']} lines are missing from the record")
    return {**{name: (first[name] + second[name]) / 2 for name in first}, **heap, **kernel}


def _heap(notebook: LabNotebook) -> float:
    """MB of the page's JavaScript heap in use after a collection."""
    session = notebook.page.context.new_cdp_session(notebook.page)
    session.send("HeapProfiler.collectGarbage")
    used: float = notebook.page.evaluate("performance.memory.usedJSHeapSize / 1e6")
    session.detach()
    return used

"""A recorded run, opened to be looked at.

The rule: it shows what the panel left of it, from the record alone.
"""

from __future__ import annotations

from xla_nb.run.recorded import Entry, RecordedRun
from xla_nb.views import observer, saved
from xla_nb.wording import in_one_line


class OpenedRun(RecordedRun):
    """A RecordedRun that a notebook shows as the panel's last state."""

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        snapshot = observer.observe(self)
        return {"text/html": saved.render_html(snapshot), "text/plain": saved.render_text(snapshot)}


def table(entries: list[Entry]) -> str:
    """Recorded runs, a line each."""
    if not entries:
        return "no run is recorded yet"
    rows = [("run", "how", "time", "cell", "what became of it")]
    for entry in entries:
        how = {True: "ok", False: "failed", None: "running"}[entry.ok]
        time = "" if entry.elapsed is None else f"{entry.elapsed:.1f} s"
        rows.append((entry.name, how, time, entry.cell, in_one_line(entry.headline, 80)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )

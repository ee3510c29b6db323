"""A recorded run, opened from its files alone; it shows what the panel left in its notebook."""

from __future__ import annotations

from xla_nb.run.recorded import Entry, RecordedRun
from xla_nb.views import picture
from xla_nb.wording import in_one_line


class OpenedRun(RecordedRun):
    """A RecordedRun that a notebook displays like the panel's last state."""

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        self.check_files("what it showed")
        return picture.whole(self)

    def _repr_html_(self) -> str:
        return self._repr_mimebundle_()["text/html"]


def table(entries: list[Entry]) -> str:
    """A table of recorded runs, one line each."""
    if not entries:
        return "No recorded runs."
    rows = [("run", "outcome", "time", "cell", "result")]
    for entry in entries:
        time = "" if entry.elapsed is None else f"{entry.elapsed:.1f} s"
        headline = in_one_line(entry.headline, 80)
        rows.append((entry.name, entry.outcome, time, entry.cell, headline))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )

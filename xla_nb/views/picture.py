"""The still picture of a run: what its cell keeps, and how a notebook shows a Run.

It is shown once in a cell: where a view has just left it, the Run that the cell gives is not shown
again.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any

from xla_nb.messages.events import Concluded
from xla_nb.run.recorded import Entry, RecordedRun
from xla_nb.run.run import Run
from xla_nb.views import diagnosis, facts, observer, rank_outputs, rendering
from xla_nb.views.loop import shell, slot
from xla_nb.views.rendering import style, tags
from xla_nb.views.snapshot import Snapshot
from xla_nb.wording import aligned, in_one_line

#: JupyterLab and nbconvert keep an output on one page of paper, and leave the rest of the page
#: before it empty. What must not be parted says so itself. Untrusted notebooks lose the style.
_ON_PAPER = (
    '<div class="xn-paper">%s</div><style>@media print {'
    " .jp-OutputArea-child:has(.xn-paper) { break-inside: auto }"
    " .xn-paper > div > div:first-child { break-after: avoid } }</style>"
)


def bundle(snapshot: Snapshot, *, told: bool = False) -> dict[str, str]:
    """The picture as HTML and as text, both complete; `told`: the cell has the output already, so
    that it is folded in the HTML."""
    html = rendering.render_html(snapshot, folds_output=told)
    return {"text/html": _ON_PAPER % html, "text/plain": rendering.render_text(snapshot)}


def show(forms: dict[str, Any]) -> None:
    """Display it in the cell that is being executed."""
    from IPython.display import publish_display_data

    publish_display_data(forms)  # type: ignore[no-untyped-call]


def kernel() -> Any:
    """The same where its cell shows what is displayed: in a notebook, but not below %%capture."""
    here = shell()
    if getattr(here, "kernel", None) is None:
        return None
    from IPython.core.displaypub import CapturingDisplayPublisher

    return None if isinstance(here.display_pub, CapturingDisplayPublisher) else here


def cell() -> int | None:
    """The number of the cell that IPython executes; None outside one."""
    here = shell()
    return None if here is None else int(here.execution_count)


class OpenedRun(RecordedRun):
    """A run that a notebook displays as its cell's last state, with what its ranks displayed."""

    shown_in: int | None = None

    def _repr_mimebundle_(self, **_: object) -> dict[str, Any]:
        return bundle(observer.observe(self)) | self.as_data()

    def _repr_html_(self) -> str:
        return bundle(observer.observe(self))["text/html"]

    def _ipython_display_(self) -> None:
        """A terminal has no room for a picture, and there is none of a run that only starts."""
        told = self.shown_in is not None and self.shown_in == cell()
        if kernel() is None:
            print(f"<Run {self.name}>" if told else repr(self))
        elif told:
            return
        elif not self.state.ranks:
            print(repr(self))
        else:
            show(self._repr_mimebundle_())
            rank_outputs.show(self)


class ShownRun(OpenedRun, Run):
    """The same of a launch of this notebook."""


class StillGroup:
    """Shows them in the cell that is being executed."""

    def __init__(self, run: RecordedRun) -> None:
        self._run = run
        self._observer = observer.Observer(run)  # reads each cell's figures once
        self._slot = slot()
        self._slot.display(self._bundle(), raw=True)

    def draw(self) -> None:
        """Show how they are now."""
        self._slot.update(self._bundle(), raw=True)

    def move(self, where: str) -> None:
        """Show nothing more here: the ranks are shown in another cell."""
        self._slot.update({"text/plain": f"Moved to {where}."}, raw=True)

    def _bundle(self) -> dict[str, Any]:
        return bundle(self._observer.look()) | self._run.as_data()


def _title(entry: Entry) -> str:
    """What its own picture has as its title."""
    told, ok = entry.found or entry.calm, entry.outcome == "finished"
    found = Concluded(kind="", sentence=told, calm=not entry.found) if told else None
    return diagnosis.ended(entry.headline, found, ok=ok, elapsed=entry.elapsed or 0.0)


_LEFT = "text-align:left"
_SHORT, _LONG = f"{_LEFT};white-space:nowrap", f"{_LEFT}{tags.at_least(30)}"
#: Of a list of runs the columns, each with its style.
_COLUMNS = (
    *(("run", f"{_SHORT};{style.MONO}"), ("notebook", _LEFT), ("outcome", _SHORT)),
    *(("time", _SHORT), ("cell", _LEFT), ("figures of rank 0", _LEFT), ("result", _LONG)),
)


def runs(entries: Sequence[Entry]) -> dict[str, str]:
    """Recorded runs, a row each: as a table, and as lines of text. A column in which no run has
    anything is left out, such as the notebook's outside of Jupyter."""
    if not entries:
        text = drawn = "No recorded runs."
    else:
        lines, rows = zip(*map(_row, entries), strict=True)
        filled = [any(column) for column in zip(*lines, strict=True)]
        titles, styles = zip(*compress(_COLUMNS, filled), strict=True)
        text = "\n".join(aligned([titles, *([*compress(line, filled)] for line in lines)]))
        shown = [[*compress(row, filled)] for row in rows]
        drawn = tags.table([*map(tags.faint, titles)], shown, styles)
    return {
        "text/html": tags.frame(f"{style.SANS};font-size:13px", drawn),
        "text/plain": text,
    }


def _row(entry: Entry) -> tuple[Sequence[str], Sequence[str]]:
    """A run's columns, as text and as HTML."""
    time = "" if entry.elapsed is None else facts.took(entry.elapsed)
    ended = _title(entry)
    last = [f"{name} {facts.figure(value)}" for name, value in entry.figures.items()]
    figures = in_one_line(" · ".join(last), 40)
    called, by = f" {in_one_line(entry.called, 60)}".rstrip(), in_one_line(entry.notebook, 40)
    cell, told = f"{entry.cell}{called}", in_one_line(ended, 80)
    sign = style.FOUND if entry.found else style.PHASES[entry.outcome]
    drawn = (
        *(tags.escaped(entry.name), tags.escaped(by)),
        *(tags.mark(sign.glyph, entry.outcome, sign.colour), time),
        tags.place(entry.cell) + tags.escaped(called),
        *(tags.escaped(figures), tags.sentence(ended, 300)),
    )
    return (entry.name, by, entry.outcome, time, cell, figures, told), drawn

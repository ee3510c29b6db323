"""The still picture of a run, which its cell keeps and which a notebook displays for a Run.

A cell shows it once: if a view has just left it there, a Run that the cell returns is not shown
again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xla_nb.messages.events import Concluded
from xla_nb.monitor import diagnosis
from xla_nb.monitor.snapshot import Snapshot
from xla_nb.run.recorded import Entry, RecordedRun
from xla_nb.run.run import Run
from xla_nb.views import facts, observer, rank_outputs, rendering
from xla_nb.views.loop import shell, slot
from xla_nb.views.rendering import style, tags
from xla_nb.wording import aligned, in_one_line, took

#: JupyterLab and nbconvert print an output on one page and leave the rest of the previous page
#: empty. Parts that must not be split have their own style. Untrusted notebooks lose this style.
_ON_PAPER = (
    '<div class="xn-paper">%s</div><style>@media print {'
    " .jp-OutputArea-child:has(.xn-paper) { break-inside: auto }"
    " .xn-paper > div > div:first-child { break-after: avoid } }</style>"
)


def bundle(snapshot: Snapshot, *, told: bool = False) -> dict[str, str]:
    """Render the picture as HTML and as text, both complete. `told`: the cell already shows the
    output, so the HTML folds it."""
    html = rendering.render_html(snapshot, folds_output=told)
    return {"text/html": _ON_PAPER % html, "text/plain": rendering.render_text(snapshot)}


def show(forms: dict[str, Any]) -> None:
    """Display the picture in the cell being executed."""
    from IPython.display import publish_display_data

    publish_display_data(forms)  # type: ignore[no-untyped-call]


def kernel() -> Any:
    """Return the shell if its cell shows displayed output: in a notebook, but not under
    %%capture."""
    ipython = shell()
    if getattr(ipython, "kernel", None) is None:
        return None
    from IPython.core.displaypub import CapturingDisplayPublisher

    return None if isinstance(ipython.display_pub, CapturingDisplayPublisher) else ipython


def cell() -> int | None:
    """Return the number of the cell that IPython is executing; None outside IPython."""
    ipython = shell()
    return None if ipython is None else int(ipython.execution_count)


class OpenedRun(RecordedRun):
    """A run that a notebook displays as its final picture, with its ranks' displays."""

    shown_in: int | None = None

    def _repr_mimebundle_(self, **_: object) -> dict[str, Any]:
        return bundle(observer.observe(self)) | self.as_data()

    def _ipython_display_(self) -> None:
        """Show the picture, except in a terminal, which has no room, and for a run that is
        starting."""
        is_shown = self.shown_in is not None and self.shown_in == cell()
        if kernel() is None:
            print(f"<Run {self.name}>" if is_shown else repr(self))
        elif is_shown:
            return
        elif not self.state.ranks:
            print(repr(self))
        else:
            show(self._repr_mimebundle_())
            rank_outputs.show(self)


class ShownRun(OpenedRun, Run):
    """An OpenedRun for a launch of this notebook."""


class StillGroup:
    """Shows live ranks in the cell being executed, where no panel is available."""

    def __init__(self, run: RecordedRun) -> None:
        self._run = run
        self._observer = observer.Observer(run)  # reads each cell's figures once
        self._slot = slot()
        self._slot.display(self._bundle(), raw=True)

    def draw(self) -> None:
        """Show the current state."""
        self._slot.update(self._bundle(), raw=True)

    def move(self, where: str) -> None:
        """Stop showing the ranks here, because another cell shows them."""
        self._slot.update({"text/plain": f"Moved to {where}."}, raw=True)

    def _bundle(self) -> dict[str, Any]:
        return bundle(self._observer.look()) | self._run.as_data()


def _title(entry: Entry) -> str:
    """The title that the run's own picture has."""
    sentence, ok = entry.found or entry.calm, entry.outcome == "finished"
    conclusion = Concluded(kind="", sentence=sentence, calm=not entry.found) if sentence else None
    return diagnosis.ended(entry.headline, conclusion, ok=ok, elapsed=entry.elapsed or 0.0)


_LEFT = "text-align:left"
_SHORT, _LONG = f"{_LEFT};white-space:nowrap", f"{_LEFT}{tags.at_least(30)}"
#: Columns of a list of runs, each with its style.
_COLUMNS = (
    *(("run", f"{_SHORT};{style.MONO}"), ("notebook", _LEFT), ("outcome", _SHORT)),
    *(("time", _SHORT), ("cell", _LEFT), ("figures of rank 0", _LEFT), ("result", _LONG)),
)


def runs(entries: Sequence[Entry]) -> dict[str, str]:
    """Render recorded runs, one per row, as an HTML table and as lines of text. Empty columns are
    omitted, such as the notebook outside Jupyter."""
    if not entries:
        text = html = "No recorded runs."
    else:
        lines, rows = zip(*map(_row, entries), strict=True)
        titles, styles = zip(*_COLUMNS, strict=True)
        text = "\n".join(aligned(titles, lines))
        html = tags.table([*map(tags.faint, titles)], rows, styles)
    return {
        "text/html": tags.frame(f"{style.SANS};font-size:13px", html),
        "text/plain": text,
    }


def _row(entry: Entry) -> tuple[Sequence[str], Sequence[str]]:
    """The columns of a run, as text and as HTML."""
    time = "" if entry.elapsed is None else took(entry.elapsed)
    title = _title(entry)
    values = [f"{name} {facts.figure(value)}" for name, value in entry.figures.items()]
    figures = in_one_line(" · ".join(values), 40)
    call, notebook = in_one_line(entry.called, 60), in_one_line(entry.notebook, 40)
    call = call if call[:1] in ("", "(") else f" {call}"  # arguments alone follow the name
    cell, short_title = f"{entry.cell}{call}", in_one_line(title, 80)
    sign = style.FOUND if entry.found else style.PHASES[entry.outcome]
    html = (
        *(tags.escaped(entry.name), tags.escaped(notebook)),
        *(tags.mark(sign.glyph, entry.outcome, sign.colour), time),
        tags.place(entry.cell) + tags.escaped(call),
        *(tags.escaped(figures), tags.sentence(title, 300)),
    )
    return (entry.name, notebook, entry.outcome, time, cell, figures, short_title), html

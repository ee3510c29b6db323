"""Several runs over one another: a chart for each figure, with a line and a band for each run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from xla_nb.run.recorded import RecordedRun
from xla_nb.views import facts
from xla_nb.views.observer import Observer
from xla_nb.views.rendering import bounds, figures
from xla_nb.views.rendering.figures import Figure, Spread
from xla_nb.views.rendering.style import EDGE, FAINT, LINES, SANS
from xla_nb.views.rendering.tags import bit, div, escaped, frame, heading, swatch
from xla_nb.views.snapshot import Snapshot
from xla_nb.wording import several


@dataclass(frozen=True)
class _Side:
    """One of the runs: what it is called here, and how it stood when it was compared."""

    name: str
    colour: str
    snapshot: Snapshot

    @property
    def about(self) -> str:
        one = self.snapshot
        return f"{facts.title(one)}{facts.gap(one)}{' · '.join(facts.about(one))}"


class Comparison:
    """What runs have reported, as charts that a notebook shows and as text.

    names    what the runs are called, in order
    figures  the names of the figures that any of them reported
    """

    def __init__(self, runs: Mapping[str, RecordedRun]) -> None:
        self._sides = [
            _Side(name, LINES[number % len(LINES)], _reported(run))
            for number, (name, run) in enumerate(runs.items())
        ]

    @property
    def names(self) -> list[str]:
        return [side.name for side in self._sides]

    @property
    def figures(self) -> list[str]:
        return list(self._spreads)

    @cached_property
    def _spreads(self) -> dict[str, dict[int, Spread]]:
        """By figure, and by the number of the run that reported it."""
        found: dict[str, dict[int, Spread]] = {}
        for number, side in enumerate(self._sides):
            for series in side.snapshot.series:
                one = figures.over_ranks(series.lines, series.thinned)
                if one.ranks:
                    found.setdefault(series.name, {})[number] = one
        return found

    def __repr__(self) -> str:
        lines = [f"Comparison of {several(len(self._sides), 'run')}"]
        lines += [
            f"  {facts.cut(one.name, 80)}: {facts.cut(one.about, 300)}" for one in self._sides
        ]
        shown, more = bounds.limited(list(self._spreads.items()), bounds.FIGURES, "figure")
        for name, spreads in shown:
            lines += ["", f"{facts.cut(name, 80)}, last of the mean (lowest to highest rank):"]
            lines += [f"  {self.names[number]}: {_last(one)}" for number, one in spreads.items()]
        lines += [more] if more else []
        lines += [] if shown else ["", _NOTHING]
        return "\n".join(lines)

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/html": self._repr_html_(), "text/plain": repr(self)}

    def _repr_html_(self) -> str:
        shown, more = bounds.limited(list(self._spreads.items()), bounds.FIGURES, "figure")
        charts = figures.drawn([self._figure(*each) for each in shown], more)
        style = f"{SANS};font-size:13px;line-height:1.5;margin:4px 0;border:1px solid {EDGE}"
        title = heading(4, "font-size:14px;font-weight:600", repr(self).partition("\n")[0])
        return frame(
            f"{style};border-radius:6px",
            div("padding:5px 12px", title, _list(self._sides)),
            div(f"padding:4px 12px;border-top:1px solid {EDGE}", charts or _NOTHING),
        )

    def _figure(self, name: str, spreads: Mapping[int, Spread]) -> Figure:
        lasts = {number: _last(one) for number, one in spreads.items()}
        told = "; ".join(f"{self.names[number]} {last}" for number, last in lasts.items())
        return Figure(
            name,
            "mean of each run's ranks, band from lowest to highest",
            f"{name}: {told}",
            {number: one.mean for number, one in spreads.items()},
            {number: self._sides[number].colour for number in spreads},
            {number: one.band for number, one in spreads.items()},
            {number: (self.names[number], last) for number, last in lasts.items()},
        )


_NOTHING = "None of them has reported a figure (xla_nb.report)."


def _reported(run: RecordedRun) -> Snapshot:
    """How a run stands, without its output."""
    run.check_files("what its ranks reported")
    observer = Observer(run)
    observer.sample()
    return observer.snapshot()


def _last(one: Spread) -> str:
    """`0.046 (0.041 to 0.05) at step 399`. A run that has diverged says so."""
    lost = f"NaN or infinite in {one.lost} of {several(one.ranks, 'rank')}" if one.lost else ""
    if not one.mean:
        return lost
    (x, mean), (_, low, high) = one.mean[-1], one.band[-1]
    band = "" if low == high else f" ({facts.figure(low)} to {facts.figure(high)})"
    whose = "" if one.lost or one.ends == one.ranks else f" in {one.ends} of {one.ranks} ranks"
    finite = f"{facts.figure(mean)}{band} at step {facts.figure(x)}{whose}"
    return f"{lost}; last number {finite}" if lost else finite


def _list(sides: Sequence[_Side]) -> str:
    items = "".join(
        f'<li style="margin:0">{swatch(side.colour)} <b>{escaped(side.name, 80)}</b> '
        f"{bit(FAINT, escaped(side.about, 300))}</li>"
        for side in sides
    )
    return f'<ul style="list-style:none;margin:0;padding:0;font-size:12px">{items}</ul>'

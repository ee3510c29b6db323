"""Report figures of ranks that are no longer finite numbers, in one sentence."""

from __future__ import annotations

from collections.abc import Mapping

from xla_nb.messages.events import Concluded, Event, FigureTurned
from xla_nb.run.hang import Watched
from xla_nb.wording import everybody, in_one_line, listed, ranks

FIGURES = "figures"  #: the kind of conclusion about them
_IS = "{} is {} from step {} ({})"
_STOPS = "{} became {} at step {} ({})"  # ranks continue for some steps, in which it may recover
_LONGEST, _MOST = 40, 3  # characters of a name; names listed after the first


class FigureWatch:
    """Watches one run, and stops it if `stops`."""

    def __init__(self, run: Watched, *, stops: bool) -> None:
        self._run, self._stops, self._has_stopped = run, stops, False
        #: By name and rank; the figure that became non-finite first is first.
        self._odd: dict[str, dict[int, FigureTurned]] = {}

    def take(self, event: Event) -> None:
        """Report which figures are not finite, if that changes."""
        if not isinstance(event, FigureTurned):
            return
        state = self._run.state
        found = self._found(event, len(state.ranks))
        if self._has_stopped and not found.sentence:
            return  # it recovered while stopping
        self._run.take(found)
        if found.sentence and self._stops and not state.stopping:
            self._has_stopped = True
            self._run.stop("Stopped by --stop-on-nan")

    def _found(self, event: FigureTurned, of: int) -> Concluded:
        by_rank = self._odd.setdefault(event.name, {})
        if event.kinds:
            by_rank[event.rank] = event
        else:
            by_rank.pop(event.rank, None)
        self._odd = {name: each for name, each in self._odd.items() if each}
        if not self._odd:
            return Concluded(kind=FIGURES, sentence="", wrong=True)
        (first, by_rank), *others = self._odd.items()
        form = _STOPS if self._stops else _IS
        told, who = _sentence(form, first, by_rank, of), tuple(sorted(by_rank))
        if others:
            names = [in_one_line(name, _LONGEST) for name, _ in others]
            told += f"; also not finite: {listed(names, most=_MOST)}"
        marked = who if len(who) < of else ()
        return Concluded(kind=FIGURES, sentence=told, ranks=marked, wrong=True)


def _sentence(form: str, name: str, by_rank: Mapping[int, FigureTurned], of: int) -> str:
    """`loss is NaN on all 4 ranks from step 30 (rank 2 first, last 0.31)`."""
    since = min(one.since for one in by_rank.values())
    first = [one for one in by_rank.values() if one.since == since]
    who = ranks(by_rank) if len(by_rank) < of else everybody(of)
    where = f" on {who}" if of > 1 else ""
    known = [one.last for one in first if one.last is not None]
    ends = [f"{end:.4g}" for end in (min(known), max(known))] if known else []
    last = f"last {' to '.join(dict.fromkeys(ends))}" if known else "no finite value before"
    if len(first) < len(by_rank):
        last = f"{ranks(one.rank for one in first)} first, {last}"
    kinds = listed(dict.fromkeys(kind for one in by_rank.values() for kind in one.kinds), "or")
    what = f"{kinds}{where}"
    return form.format(in_one_line(name, _LONGEST), what, f"{since:,.10g}", last)

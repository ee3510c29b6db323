"""Report figures of ranks that are no longer finite numbers, in one sentence."""

from __future__ import annotations

from collections.abc import Mapping

from xla_nb.messages.events import Concluded, Event, FigureTurned
from xla_nb.monitor.stacks import InProgress
from xla_nb.wording import everybody, in_one_line, listed, ranks

FIGURES = "figures"  #: the kind of conclusion about them
_SINCE = "{} is {} from step {} ({})"
_AT_STOP = "{} became {} at step {} ({})"  # ranks continue for some steps, in which it may recover
_NAME_LENGTH, _MAX_NAMES = 40, 3  # characters of a name; names listed after the first


class FigureWatch:
    """Watches one run, and stops it if `stops`."""

    def __init__(self, run: InProgress, *, stops: bool) -> None:
        self._run, self._stops, self._has_stopped = run, stops, False
        #: By name and rank; the figure that became non-finite first is first.
        self._non_finite: dict[str, dict[int, FigureTurned]] = {}

    def take(self, event: Event) -> None:
        """Report which figures are not finite, if that changes."""
        if not isinstance(event, FigureTurned):
            return
        state = self._run.state
        conclusion = self._make_conclusion(event, len(state.ranks))
        if self._has_stopped and not conclusion.sentence:
            return  # it recovered while stopping
        self._run.take(conclusion)
        if conclusion.sentence and self._stops and not state.stopping:
            self._has_stopped = True
            self._run.stop("Stopped by --stop-on-nan")

    def _make_conclusion(self, event: FigureTurned, count: int) -> Concluded:
        by_rank = self._non_finite.setdefault(event.name, {})
        if event.kinds:
            by_rank[event.rank] = event
        else:
            by_rank.pop(event.rank, None)
        self._non_finite = {name: events for name, events in self._non_finite.items() if events}
        if not self._non_finite:
            return Concluded(kind=FIGURES, sentence="", wrong=True)
        (first, by_rank), *others = self._non_finite.items()
        form = _AT_STOP if self._stops else _SINCE
        sentence, numbers = _sentence(form, first, by_rank, count), tuple(sorted(by_rank))
        if others:
            names = [in_one_line(name, _NAME_LENGTH) for name, _ in others]
            sentence += f"; also not finite: {listed(names, most=_MAX_NAMES)}"
        marked = numbers if len(numbers) < count else ()
        return Concluded(kind=FIGURES, sentence=sentence, ranks=marked, wrong=True)


def _sentence(form: str, name: str, by_rank: Mapping[int, FigureTurned], count: int) -> str:
    """`loss is NaN on all 4 ranks, first from step 30 on rank 2 (last 0.31)`."""
    since = min(event.since for event in by_rank.values())
    first = [event for event in by_rank.values() if event.since == since]
    subject = ranks(by_rank) if len(by_rank) < count else everybody(count)
    where = f" on {subject}" if count > 1 else ""
    values = [event.last for event in first if event.last is not None]
    ends = [f"{end:.4g}" for end in (min(values), max(values))] if values else []
    last = f"last {' to '.join(dict.fromkeys(ends))}" if values else "no finite value before"
    kinds = listed(dict.fromkeys(kind for event in by_rank.values() for kind in event.kinds), "or")
    what, step = f"{kinds}{where}", f"{since:,.10g}"
    if len(first) < len(by_rank):
        what, step = f"{what}, first", f"{step} on {ranks(event.rank for event in first)}"
    return form.format(in_one_line(name, _NAME_LENGTH), what, step, last)

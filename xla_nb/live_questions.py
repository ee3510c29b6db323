"""Questions to live ranks between cells: their variables, and whether watched ones drifted apart.

Each question runs as a program on the ranks that leaves no record and is not in their history.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from xla_nb.errors import Interrupted, XlaNbError
from xla_nb.messages import events
from xla_nb.monitor import variable_comparison
from xla_nb.monitor.drift import DRIFT
from xla_nb.program.build import build_question
from xla_nb.rank import variables as of_rank
from xla_nb.rank.entries import WithoutIndex
from xla_nb.run.group import Group
from xla_nb.run.run import Run
from xla_nb.views.variables import Variables

#: Time limits in seconds: for a withdrawn question to stop, and to compare watched variables.
_WITHDRAWAL, _COMPARISON = 5.0, 60.0
#: The reason with which a withdrawn question stops.
_WITHDRAWN = "Withdrawn"
T = TypeVar("T")


def ask(
    group: Group,
    question: Callable[..., T],
    args: tuple[object, ...] = (),
    members: tuple[int, ...] | None = None,
    *,
    within: float | None = None,
) -> dict[int, T]:
    """Ask ranks a question between two programs, and return their answers; it leaves no record.

    Raises UsageError if one of them is busy, RunFailed, and when the question is withdrawn
    TimeoutError (after `within` seconds) or Interrupted."""
    chosen = group.world if members is None else members
    group.check(chosen)
    program = build_question(WithoutIndex(question, {}), args, name="xla_nb_question")
    options = replace(group.options, grace=_WITHDRAWAL)
    try:
        with group.asking(program, options, chosen, within) as run:
            try:
                if not run.join_end(within):
                    raise TimeoutError
                run.check()
                return dict(run.results)
            finally:
                run.stop(_WITHDRAWN)
                run.join_end()
                run.record.discard()
    except KeyboardInterrupt:
        raise Interrupted("Interrupted before all ranks had answered.") from None


def variables(group: Group, names: Sequence[str] = (), *, compute: bool = False) -> Variables:
    """The variables of a group's living ranks, by default all that its cells have bound. Raises
    what a cell raises."""
    members = group.alive or group.world  # with none alive, the check says why they ended
    answers = ask(group, of_rank.asked, (tuple(names), compute), members)
    return Variables(variable_comparison.compare(answers), len(members), len(group.world))


def look_for_drift(group: Group, run: Run) -> None:
    """Report which watched variables drifted apart in a cell, before the cell counts as done."""
    state = run.state
    if state.lost_group or set(group.world) != set(group.alive):
        return  # reported elsewhere
    watch = group.watch
    try:
        answers = ask(group, of_rank.asked, (tuple(watch.names), False), within=_COMPARISON)
        drifts = watch.after(run.label, variable_comparison.compare(answers))
    except (XlaNbError, TimeoutError) as problem:
        message = f"Could not compare the watched variables: {problem or 'it took too long'}"
        run.append(events.Notice(text=message))
        return
    for drift in drifts:
        if not drift.wrong:
            run.append(events.Notice(text=drift.sentence))
            group.run.take(events.Notice(text=drift.sentence))
    if new := [drift for drift in drifts if drift.wrong]:
        ranks = tuple(sorted({rank for drift in new for rank in drift.ranks}))
        sentence = "; ".join(drift.sentence for drift in new)
        conclusion = events.Concluded(kind=DRIFT, sentence=sentence, ranks=ranks, wrong=True)
        run.append(conclusion)
        group.run.take(conclusion)

"""What had succeeded on live ranks, run again on new ones: `%xla_restart --replay`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from xla_nb.errors import LaunchError
from xla_nb.program.build import Cell
from xla_nb.run.group import Group, Left, Played
from xla_nb.run.options import Options
from xla_nb.run.replaying import difference, not_compared, returned
from xla_nb.run.run import Run
from xla_nb.wording import listed

#: Runs a cell on some of the ranks, by default all, and shows it.
_RunCell = Callable[[Group, Cell, Options, tuple[int, ...] | None], Run]


def replay(group: Group, old: Group, run_cell: _RunCell) -> None:
    """Run on `group` what had succeeded on `old`, in order, and then what a replay there has left,
    if nothing has succeeded since. Raises what a cell raises, and LaunchError where one returns
    something else, or before what cannot be repeated."""
    goes_on = len(old.history) == old.left.after
    _play(group, [*old.history, *(old.left.history if goes_on else ())], run_cell)
    if old.left.history and not goes_on:
        print(f"The replay before had stopped.{_not_again(old.left.history)}")


def _play(group: Group, history: Sequence[Played], run_cell: _RunCell) -> None:
    for number, each in enumerate(history):
        rest = history[number + 1 :]
        group.left = Left(history[number:], len(group.history))
        if each.cell is None:
            then = f", then {_labels(rest)}" if rest else ""
            raise LaunchError(
                f"The replay stopped before `{each.label}`, of which the values are not kept. "
                f"Repeat it yourself{then}."
            )
        print(f"{each.label} again …", flush=True)
        options = replace(each.options, bg=False, keep_going=False)
        try:
            now = returned(run_cell(group, each.cell, options, each.members))
        except BaseException:
            print(f"The replay stopped at {each.label}.{_not_again(rest)}")
            raise
        group.left = Left(rest, len(group.history))
        if changed := difference(each.label, each.returned, now):
            raise LaunchError(f"The replay stopped: {changed}.{_not_again(rest)}")
        if unknown := not_compared(each.label, each.returned, now):
            print(unknown)


def _not_again(rest: Sequence[Played]) -> str:
    return f" Not run again: {_labels(rest)}." if rest else ""


def _labels(played: Sequence[Played]) -> str:
    return listed([one.label for one in played], most=5)

"""Questions to live ranks between cells: their variables, and for Tab and Shift-Tab in a %%xla cell
completions and help on an object.

Each question runs as a program on the ranks that leaves no record and is not in their history.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from xla_nb import ansi
from xla_nb.errors import Interrupted, XlaNbError
from xla_nb.messages import events
from xla_nb.monitor import variable_comparison
from xla_nb.monitor.drift import DRIFT
from xla_nb.program.build import build_question
from xla_nb.program.rank_cell import RANK_NAMES
from xla_nb.rank import introspection
from xla_nb.rank import variables as of_rank
from xla_nb.rank.entries import WithoutIndex
from xla_nb.rank.introspection import Completions
from xla_nb.run.group import Group
from xla_nb.run.run import Run
from xla_nb.views.variables import Variables

#: Time limits in seconds: for Tab, for `name?`, and for the tooltip of the object at the cursor.
_COMPLETION, _HELP, _TOOLTIP = 0.2, 5.0, 1.0
#: Time limits in seconds: for a withdrawn question to stop, and to compare watched variables.
_WITHDRAWAL, _COMPARISON = 5.0, 60.0
#: The reason with which a withdrawn question stops.
_WITHDRAWN = "Withdrawn"
#: Maps a %%xla line to its live ranks; None if it is unfinished or there are none.
GroupOf = Callable[[str], Group | None]
_LIVE = re.compile(r"%%xla(\s|$)")
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


def completions(group: Group, before: str) -> Completions | None:
    """Completions from the first rank for a cell's text up to the cursor; None if it is busy or
    does not answer in time."""
    return _ask_first_rank(group, introspection.completions, (before,), _COMPLETION)


def about(group: Group, expression: str, *, source: bool, within: float = _HELP) -> str | None:
    """Help on an object from the first rank, "" if it has no such object; None if the rank is busy
    or does not answer within so many seconds."""
    text = _ask_first_rank(group, introspection.about, (expression, source), within)
    lines = [ansi.plain(line) for line in (text or "").split("\n")]
    return "\n".join([f"On rank {group.alive[0]}", *lines]) if text else text


def _ask_first_rank(
    group: Group, question: Callable[..., T], args: tuple[object, ...], within: float
) -> T | None:
    first = group.alive[:1]
    try:
        return ask(group, question, args, first, within=within)[first[0]] if first else None
    except (XlaNbError, TimeoutError):
        return None


# ---------------------------------------------------------------- Tab and Shift-Tab


def turn_on(shell: Any, group_of: GroupOf) -> None:
    """Make the shell's kernel, if it has one, ask here first. Calling it again does nothing."""
    kernel = getattr(shell, "kernel", None)
    if kernel is None or "do_complete" in vars(kernel):
        return
    kernel.do_complete = functools.partial(_completed, kernel.do_complete, group_of)
    kernel.do_inspect = functools.partial(_inspect, kernel.do_inspect, group_of)


def turn_off(shell: Any) -> None:
    """Restore the kernel's own answers."""
    for name in ("do_complete", "do_inspect"):
        vars(getattr(shell, "kernel", None) or shell).pop(name, None)


def _completed(
    original: Callable[[str, int], dict[str, Any]],
    group_of: GroupOf,
    code: str,
    cursor: int | None,
) -> dict[str, Any]:
    """The kernel's reply; `cursor` counts characters. For attributes of an object that the ranks
    know, only theirs are offered."""
    cursor = len(code) if cursor is None else cursor
    line = _find_magic_line(code[:cursor])
    group = group_of(line) if line else None
    text = code[:cursor].partition(f"{line}\n")[2]
    offered = completions(group, text) if group else None
    if offered is not None and offered.matches and offered.of_object:
        return _reply(offered.matches, offered.fragment, cursor)
    reply = original(code, cursor)
    if offered is None or not offered.matches:
        return reply
    start = cursor - len(offered.fragment)
    names = reply["matches"] if reply["cursor_start"] == start else []
    return _reply([*dict.fromkeys((*offered.matches, *names))], offered.fragment, cursor)


def _reply(matches: Sequence[str], fragment: str, cursor: int) -> dict[str, Any]:
    """A completion reply in ipykernel's form."""
    span = {"cursor_start": cursor - len(fragment), "cursor_end": cursor}
    return {"status": "ok", "matches": list(matches), **span, "metadata": {}}


def _find_magic_line(before: str) -> str:
    """The %%xla line above the cursor's line; "" if there is none."""
    return next((line for line in before.split("\n")[:-1] if _LIVE.match(line)), "")


def _inspect(
    original: Callable[..., Any],
    group_of: GroupOf,
    code: str,
    cursor: int,
    level: int = 0,
    *args: Any,
) -> Any:
    """The kernel's reply on the object at the cursor: the ranks' object if the name is theirs."""
    from IPython.utils.tokenutil import token_at_cursor

    line, expression = _find_magic_line(code[:cursor]), token_at_cursor(code, cursor)
    group = group_of(line) if line else None
    if group is None or expression.partition(".")[0] not in RANK_NAMES | group.remote.keys():
        return original(code, cursor, level, *args)
    text = about(group, expression, source=level > 0, within=_TOOLTIP)
    data = {"text/plain": text} if text else {}
    return {"status": "ok", "data": data, "metadata": {}, "found": bool(text)}

"""Sentences on which ranks wait for which, where and how long: for a run's title, for hang reports
and for stopped runs.

Pure. Only known facts are stated: a rank waits for another only if its sample says so. On a TPU,
where no sample can, ranks are described by their place.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from xla_nb.messages.events import Concluded, StackGroup
from xla_nb.record.sample import DATA, INPUT, LOCK, Sample
from xla_nb.run.activity import RankStatus
from xla_nb.run.stacks import alike
from xla_nb.run.state import ENDED
from xla_nb.wording import exactly, in_one_line, listed, ranks, several, shortened

WAITED = "waited"  #: the kind of conclusion about who waited for whom
_LONG = 3.0  # seconds of a wait from which the title shows it
_MOST = 4  # at most: clauses of a verdict, spans of ranks
_GROUPS, _STACK = 16, 4000  # groups with a stack; characters of a stack
_LONGEST = 60  # characters of a call or an operation
_OURS = "/xla_nb/rank/"  # the iterator of `xla_nb.progress`, say, and what calls the entry
_FRAME = re.compile(r'^  File "(.*)", line (\d+), in (.+)$')
_ENDS = {"finished": "returned", "failed": "failed", "died": "died", "stopped": "been stopped"}
#: In a title, what the rank does that others wait for.
_LATE = {
    "starting": ", still starting",
    "finished": ", which has returned",
    **dict.fromkeys(("failed", "died", "stopped"), ", which has ended"),
    "idle": ", which is not running a cell",
}


# ---------------------------------------------------------------- the longest wait


def longest(statuses: Iterable[RankStatus], cell: str, *, over: bool = False) -> Concluded | None:
    """The longest wait: who waits, for whom, and where that rank is; None if there is no long wait.
    `cell`: the run's own cell, whose lines are named alone; `over`: use the past tense, for a
    stopped run."""
    by_rank = {one.rank: one for one in statuses}
    groups: dict[tuple[str, tuple[int, ...]], list[RankStatus]] = {}
    for one in by_rank.values():
        missing = tuple(n for n in one.missing if n in by_rank and not _has_come(by_rank[n], one))
        asks = one.operation if one.waits_for_lock or one.operation == INPUT else ""
        if one.activity == "waiting" and one.lasting >= _LONG and (asks or missing):
            groups.setdefault((asks, missing), []).append(one)
    if not groups:
        return None
    (asks, missing), waiting = max(groups.items(), key=lambda group: _spread(group[1])[1])
    least, most = _spread(waiting)
    who = several(len(waiting), "rank") if len(waiting) > 1 else _who(waiting)
    have, holds = ("had", "held") if over else (_have(waiting), "holds")
    told = f"{who} {have} been waiting {'up to ' if most - least >= 2 else ''}{lasting(most)} for "
    does = {_late(by_rank[rank], waiting, cell) for rank in missing}
    where = does.pop() if len(does) == 1 else ""
    if asks == INPUT:
        place, *others = {one.place for one in waiting}
        told += f"an answer{f' at {line(place, cell)}' if place and not others else ''}"
    elif not asks:
        told += f"{ranks(missing)}{where}"
    elif [one.rank for one in waiting] == list(missing):
        told += f"`lock`, which it {holds} itself"
    else:
        told += f"`lock`{f', which {ranks(missing)} {holds}{where}' if missing else ''}"
    return Concluded(kind=WAITED, sentence=told, ranks=missing, strength=most)


def _has_come(other: RankStatus, waiting: RankStatus) -> bool:
    """Whether another rank is in the same collective now, so that it is no longer waited for:
    samples of ranks are of different times."""
    return other.operation == waiting.operation and waiting.in_collective


def _late(one: RankStatus, waiting: Sequence[RankStatus], cell: str) -> str:
    """What a rank does that others wait for: `, at line 6`, `, which has returned`."""
    at = f" at {line(one.place, cell)}" if one.place else ""
    if (does := _LATE.get(one.phase) or _LATE.get(one.activity)) is not None:
        return does
    if one.activity == "compiling":
        return f", compiling{at}"
    if one.waits_for_lock:
        has_it = waiting[0].waits_for_lock  # it got the lock a moment ago
        held = f", held by {ranks(one.missing)}" if one.missing else ""
        if len(waiting) > 1 and _numbers(waiting).intersection(one.missing):
            held += f", one of the {len(waiting):,}"
        return "" if has_it else f", which waits for `lock`{at}{held}"
    if one.activity == "waiting" and one.operation:
        return f", {'waiting for data' if one.operation == DATA else f'in {_operation(one)}'}{at}"
    return ", sending its result" if one.returned else f",{at}" if at else ""


def line(place: str, cell: str) -> str:
    """`line 6` for the run's own cell, else the whole place."""
    holder, _, number = place.rpartition(", line ")
    return f"line {number}" if holder == cell else place


# ---------------------------------------------------------------- the verdict on a hang


def verdict(statuses: Iterable[RankStatus], after: float) -> str:
    """A sentence, without a full stop, on ranks without progress for `after` seconds (0: none);
    then on ranks that wait for the lock of an ended rank, that wait for one of these, or that these
    wait for."""
    known = {status.rank: status for status in statuses}
    running = [one for one in known.values() if one.phase not in ENDED]
    hung = _numbers(one for one in running if one.quiet >= (after or math.inf))
    due = hung | _numbers(one for one in running if one.waits_for_lock and _is_lost(one, known))
    due |= _numbers(one for one in running if due.intersection(one.missing))
    others = due.union(*(known[rank].missing for rank in due)) & known.keys() - hung
    told = [_clauses(known[rank] for rank in sorted(some)) for some in (hung, others) if some]
    if hung:
        told[0] = f"no progress for {_since(min(known[rank].quiet for rank in hung))}: {told[0]}"
    return _brief(". ".join(map(capital, told)), (one.place for one in known.values()))


def _clauses(statuses: Iterable[RankStatus]) -> str:
    """`rank 1 is in `queue.get` at Cell In[3], line 9; …`, the outliers first."""
    groups = sorted(_grouped(statuses), key=_oddness)
    clauses = [f"{_who(group)} {_phrase(group)}" for group in groups[:_MOST]]
    more = len(groups) - _MOST
    return "; ".join([*clauses, *([f"{more} more places in the report"] if more > 0 else [])])


def _is_lost(waiting: RankStatus, known: Mapping[int, RankStatus]) -> bool:
    return any(known[rank].phase in ENDED for rank in waiting.missing if rank in known)


def _oddness(group: Sequence[RankStatus]) -> tuple[bool, int, int]:
    """Sort key: groups that wait for nobody first, then the smallest."""
    return group[0].activity == "waiting", len(group), group[0].rank


def capital(sentence: str) -> str:
    """The sentence with a capital first letter."""
    return sentence[:1].upper() + sentence[1:]


def _brief(sentence: str, places: Iterable[str]) -> str:
    """The sentence, naming a cell or file only where it differs from the last one named."""
    files = {place.rpartition(", line ")[0] for place in places} - {""}
    last = ""

    def named(match: re.Match[str]) -> str:
        nonlocal last
        known, last = match[1] == last, match[1]
        return " at line " if known else match[0]

    either = "|".join(map(re.escape, sorted(files, key=len, reverse=True)))
    return re.sub(f" at ({either}), line ", named, sentence) if files else sentence


# ---------------------------------------------------------------- what ranks do, in words


def _phrase(group: Sequence[RankStatus]) -> str:
    """The common activity of ranks: `is in `queue.get` at Cell In[3], line 9`."""
    one, at, have = group[0], _at(group[0]), _have(group)
    if one.phase in ENDED:
        return f"{have} {_ENDS[one.phase]}"
    if one.phase == "starting":
        return f"{have} been joining the runtime for {_long(group)}"
    if one.activity == "compiling":
        return f"{have} been compiling for {_long(group)}{at}"
    if one.activity != "waiting":
        return f"{_are(group)} {_runs(group)}"
    if one.waits_for_lock:
        what = _for_lock(one.rank, one.missing, at)
    elif one.operation == INPUT:
        what = f"for an answer{at}"
    else:
        whom = f" for {ranks(one.missing)}" if one.missing else " while data is transferred"
        what = f"in {_operation(one)}{at}{whom}"
    return f"{have} been waiting {_long(group)} {what}"


def detail(rank: int, sample: Sample) -> str:
    """A rank's activity, beside its phase and its line: `in all_reduce, for rank 1`."""
    if sample.returned:
        return "sending its result"
    if sample.operation == LOCK:
        return _for_lock(rank, sample.missing)
    if sample.operation == INPUT:
        return "for an answer in the notebook"
    if sample.operation == DATA:
        return "for data"
    late = f", for {ranks(sample.missing)}" if sample.missing else ""
    return f"in {sample.operation}{late}" if sample.operation else ""


def _for_lock(rank: int, missing: tuple[int, ...], at: str = "") -> str:
    """`for `lock`, which rank 1 holds`, or without the holder if unknown."""
    whose = "it holds itself" if missing == (rank,) else f"{ranks(missing)} holds"
    return f"for `lock`{at}{f', which {whose}' if missing else ''}"


def _runs(group: Sequence[RankStatus]) -> str:
    one, at = group[0], _at(group[0])
    inside = f"in `{one.call}`" if one.call else ""
    if one.returned:
        return f"sending {'its result' if len(group) == 1 else 'their results'}{at}"
    if one.unheard:
        silent = "not responding (stopped, or blocked in native code)"
        return f"{silent}, last seen{at or ' at an unknown line'}"
    if one.computes:
        share = min(each.cpu or 0.0 for each in group)
        return f"computing{inside and ' '}{inside}{at} ({100 * share:.0f} % of a CPU)"
    return f"{inside}{at}".lstrip() or "at an unknown line"


def lasting(seconds: float) -> str:
    """A duration, rounded down: `45 s`, `1 min 49 s`, `2 h 5 min`."""
    whole = int(seconds)
    return exactly(whole if whole < 3600 else whole - whole % 60)


def _since(seconds: float) -> str:
    """Time since progress was last seen; it may have been made up to one look earlier."""
    return f"over {lasting(seconds)}" if seconds >= 1 else "a moment"


def _operation(one: RankStatus) -> str:
    """`all_reduce` of `all_reduce sum f32[2]`."""
    return in_one_line(one.operation.partition(" ")[0], _LONGEST)


def _at(one: RankStatus) -> str:
    return f" at {one.place}" if one.place else ""


def _who(group: Sequence[RankStatus]) -> str:
    return ranks(one.rank for one in group)


def _are(group: Sequence[RankStatus]) -> str:
    return "is" if len(group) == 1 else "are"


def _have(group: Sequence[RankStatus]) -> str:
    return "has" if len(group) == 1 else "have"


def _spread(group: Sequence[RankStatus]) -> tuple[float, float]:
    """Shortest and longest time in their activity."""
    each = [one.lasting for one in group]
    return min(each), max(each)


def _long(group: Sequence[RankStatus]) -> str:
    return lasting(_spread(group)[0])


def _numbers(group: Iterable[RankStatus]) -> set[int]:
    return {one.rank for one in group}


def _grouped(statuses: Iterable[RankStatus]) -> list[list[RankStatus]]:
    """Ranks grouped by activity and place."""
    by_rank = {one.rank: one for one in statuses}
    found = alike({rank: _kind(one) for rank, one in by_rank.items()})
    return [[by_rank[rank] for rank in numbers] for numbers in found.values()]


def _kind(one: RankStatus) -> tuple[object, ...]:
    """Grouping key: equal for ranks with the same activity and place, whatever their times."""
    runs = one.activity == "running"  # not shown for ranks that wait
    own = runs and (one.computes, one.unheard, one.call)
    return one.phase, one.activity, one.returned, own, one.operation, one.missing, one.place


# ---------------------------------------------------------------- where they are


def call_at(place: str, stack: str) -> str:
    """The function that the notebook's line `place` called: `queue.get`, or the line's text if it
    called no Python function; without such a line, the innermost function.

    `stack` has the innermost frame first."""
    cell = place.rpartition(", line ")[0]
    inner = innermost = ""
    lines = stack.splitlines()
    for number, line in enumerate(lines):
        frame = _FRAME.match(line)
        if frame is not None and frame[1] == cell:
            text = lines[number + 1].strip() if number + 1 < len(lines) else ""
            return inner or in_one_line(text, _LONGEST).replace("`", "'")
        if frame is not None and _OURS not in frame[1]:
            inner = f"{_module(frame[1])}.{frame[3]}"
            innermost = innermost or inner
    return innermost


def _module(file: str) -> str:
    """`queue` of a file, `torch_xla` of a package's `__init__.py`."""
    folder, name = file.rsplit("/", 2)[-2:] if file.count("/") > 1 else ("", file)
    stem = name.rpartition("/")[2].removesuffix(".py")
    return folder if stem == "__init__" and folder else stem


def groups(statuses: Iterable[RankStatus], answers: Mapping[int, StackGroup]) -> list[StackGroup]:
    """Places of the running ranks: groups that wait for nobody first, then the smallest. Groups
    beyond the first few have no stack."""
    running = {one.rank: one for one in statuses if one.phase not in ENDED}
    nothing = StackGroup((), "", "", "not responding")
    known = {
        rank: (_kind(one), replace(answers.get(rank, nothing), ranks=()))
        for rank, one in running.items()
    }
    found = []
    for (_, answer), numbers in alike(known).items():
        group = [running[rank] for rank in numbers]
        place = answer.place or group[0].place
        notes = "; ".join(filter(None, [_note(group), answer.note]))
        found.append(StackGroup(numbers, place, shortened(answer.stack, _STACK), notes))
    found.sort(key=lambda group: _oddness([running[rank] for rank in group.ranks]))
    return [*found[:_GROUPS], *(replace(group, stack="") for group in found[_GROUPS:])]


def _note(group: Sequence[RankStatus]) -> str:
    """Their activity, beside their stack, with the collective in full."""
    one = group[0]
    if one.in_collective:
        if one.operation == INPUT:
            return f"waiting {_long(group)} for an answer in the notebook"
        whom = f" for {ranks(one.missing)}" if one.missing else ""
        return f"waiting {_long(group)} in {one.operation}{whom}"
    if one.phase == "starting" or one.activity != "running" or one.computes:
        return _phrase([replace(each, place="", call="") for each in group])
    return f"no progress for {_since(min(each.quiet for each in group))}"


def why_over(before: Iterable[int], statuses: Iterable[RankStatus]) -> str:
    """The reason why a hang of the ranks `before` is over."""
    now = {one.rank: one for one in statuses}
    ended = [rank for rank in before if rank in now and now[rank].phase in ENDED]
    moved = [rank for rank in before if rank not in ended]
    told = (
        (ended, "has ended", "have ended"),
        (moved, "is making progress again", "are making progress again"),
    )
    each = [
        f"{ranks(who, _MOST)} {one if len(who) == 1 else many}" for who, one, many in told if who
    ]
    return capital(listed(each))

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
from xla_nb.monitor.activity import RankStatus
from xla_nb.monitor.stacks import alike
from xla_nb.monitor.state import ENDED
from xla_nb.record.sample import DATA, INPUT, LOCK, Sample
from xla_nb.wording import in_one_line, lasting, listed, ranks, several, shortened

WAITED = "waited"  #: the kind of conclusion about who waited for whom
_LONG = 3.0  # seconds of a wait from which the title shows it
_LIMIT = 4  # at most: clauses of a verdict, spans of ranks
_MAX_GROUPS, _STACK_LENGTH = 16, 4000  # groups with a stack; characters of a stack
_NAME_LENGTH = 60  # characters of a call or an operation
_END_VERBS = {"finished": "returned", "failed": "failed", "died": "died", "stopped": "been stopped"}


# ---------------------------------------------------------------- the longest wait


def longest(statuses: Iterable[RankStatus], cell: str, *, over: bool = False) -> Concluded | None:
    """The longest wait: who waits, for whom, and where that rank is; None if there is no long wait.
    `cell`: the run's own cell, whose lines are named alone; `over`: use the past tense, for a
    stopped run."""
    by_rank = {s.rank: s for s in statuses}
    groups: dict[tuple[str, tuple[int, ...]], list[RankStatus]] = {}
    for s in by_rank.values():
        missing = tuple(n for n in s.missing if n in by_rank and not _has_arrived(by_rank[n], s))
        resource = s.operation if s.waits_for_lock or s.operation == INPUT else ""
        if s.activity == "waiting" and s.lasting >= _LONG and (resource or missing):
            groups.setdefault((resource, missing), []).append(s)
    if not groups:
        return None
    (resource, missing), waiting = max(groups.items(), key=lambda group: _time_range(group[1])[1])
    low, high = _time_range(waiting)
    subject = several(len(waiting), "rank") if len(waiting) > 1 else _subject(waiting)
    have, holds = ("had", "held") if over else (_have(waiting), "holds")
    text = (
        f"{subject} {have} been waiting {'up to ' if high - low >= 2 else ''}{lasting(high)} for "
    )
    states = {_describe_late(by_rank[rank], waiting[0], cell) for rank in missing}
    where = states.pop() if len(states) == 1 else ""
    if resource == INPUT:
        place, *others = {s.place for s in waiting}
        text += f"an answer{f' at {line(place, cell)}' if place and not others else ''}"
    elif not resource:
        text += f"{ranks(missing)}{where}"
    elif [s.rank for s in waiting] == list(missing):
        text += f"`lock`, which it {holds} itself"
    else:
        text += f"`lock`{f', which {ranks(missing)} {holds}{where}' if missing else ''}"
    return Concluded(kind=WAITED, sentence=text, ranks=missing, strength=high)


def _has_arrived(other: RankStatus, waiting: RankStatus) -> bool:
    """Whether another rank is in the same collective now, so that it is no longer waited for:
    samples of ranks are of different times."""
    return other.operation == waiting.operation and waiting.in_collective


def _describe_late(late: RankStatus, waiting: RankStatus, cell: str) -> str:
    """What a rank does that others wait for: `, at line 6`, `, which has returned`."""
    at = f" at {line(late.place, cell)}" if late.place else ""
    if late.phase in ENDED:
        return f", which has {_END_VERBS[late.phase]}"
    if late.phase == "starting":
        return ", still starting"
    if late.activity == "idle":
        return ", which is not running a cell"
    if late.unheard:
        return f", which is not responding{f', last seen{at}' if at else ''}"
    if late.activity == "compiling":
        return f", compiling{at}"
    if late.waits_for_lock:
        holder = f", held by {ranks(late.missing)}" if late.missing else ""
        # If both wait for it, it has changed hands a moment ago.
        return "" if waiting.waits_for_lock else f", which waits for `lock`{at}{holder}"
    if late.activity == "waiting" and late.operation:
        return f", {'waiting for data' if late.operation == DATA else f'in {_operation(late)}'}{at}"
    return ", sending its result" if late.returned else f",{at}" if at else ""


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
    running = [s for s in known.values() if s.phase not in ENDED]
    hung = _numbers(s for s in running if s.quiet >= (after or math.inf))
    due = hung | _numbers(s for s in running if s.waits_for_lock and for_ended(s, known))
    due |= _numbers(s for s in running if due.intersection(s.missing))
    others = due.union(*(known[rank].missing for rank in due)) & known.keys() - hung
    texts = [_clauses(known[rank] for rank in sorted(group)) for group in (hung, others) if group]
    if hung:
        texts[0] = f"no progress for {_since(min(known[rank].quiet for rank in hung))}: {texts[0]}"
    return _brief(". ".join(map(capital, texts)), (s.place for s in known.values()))


def _clauses(statuses: Iterable[RankStatus]) -> str:
    """`rank 1 is in `queue.get` at Cell In[3], line 9; …`, the outliers first."""
    groups = sorted(_group_alike(statuses), key=_oddness)
    clauses = [f"{_subject(group)} {_phrase(group)}" for group in groups[:_LIMIT]]
    omitted = len(groups) - _LIMIT
    return "; ".join([*clauses, *([f"{omitted} more places in the report"] if omitted > 0 else [])])


def for_ended(waiting: RankStatus, known: Mapping[int, RankStatus]) -> bool:
    """Whether it waits for a rank that has ended."""
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

    def shorten(match: re.Match[str]) -> str:
        nonlocal last
        is_same, last = match[1] == last, match[1]
        return " at line " if is_same else match[0]

    pattern = "|".join(map(re.escape, sorted(files, key=len, reverse=True)))
    return re.sub(f" at ({pattern}), line ", shorten, sentence) if files else sentence


# ---------------------------------------------------------------- what ranks do, in words


def _phrase(group: Sequence[RankStatus]) -> str:
    """The common activity of ranks: `is in `queue.get` at Cell In[3], line 9`."""
    status, at, have = group[0], _at(group[0]), _have(group)
    if status.phase in ENDED:
        return f"{have} {_END_VERBS[status.phase]}"
    if status.phase == "starting":
        return f"{have} been joining the runtime for {_format_time(group)}"
    if status.activity == "compiling":
        return f"{have} been compiling for {_format_time(group)}{at}"
    if status.activity != "waiting":
        return f"{'is' if len(group) == 1 else 'are'} {_describe_running(group)}"
    if status.waits_for_lock:
        what = _for_lock(status.rank, status.missing, at)
    elif status.operation == INPUT:
        what = f"for an answer{at}"
    else:
        target = f" for {ranks(status.missing)}" if status.missing else " while data is transferred"
        what = f"in {_operation(status)}{at}{target}"
    return f"{have} been waiting {_format_time(group)} {what}"


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
    target = f", for {ranks(sample.missing)}" if sample.missing else ""
    return f"in {sample.operation}{target}" if sample.operation else ""


def _for_lock(rank: int, missing: tuple[int, ...], at: str = "") -> str:
    """`for `lock`, which rank 1 holds`, or without the holder if unknown."""
    clause = "it holds itself" if missing == (rank,) else f"{ranks(missing)} holds"
    return f"for `lock`{at}{f', which {clause}' if missing else ''}"


def _describe_running(group: Sequence[RankStatus]) -> str:
    status, at = group[0], _at(group[0])
    inside = f"in `{status.call}`" if status.call else ""
    if status.returned:
        return f"sending {'its result' if len(group) == 1 else 'their results'}{at}"
    if status.unheard:
        silent = "not responding (stopped, or blocked in native code)"
        return f"{silent}, last seen{at or ' at an unknown line'}"
    if status.computes:
        share = min(member.cpu or 0.0 for member in group)
        return f"computing{inside and ' '}{inside}{at} ({100 * share:.0f} % of a CPU)"
    return f"{inside}{at}".lstrip() or "at an unknown line"


def _since(seconds: float) -> str:
    """Time since progress was last seen; it may have been made up to one look earlier."""
    return f"over {lasting(seconds)}" if seconds >= 1 else "a moment"


def _operation(status: RankStatus) -> str:
    """`all_reduce` of `all_reduce sum f32[2]`."""
    return in_one_line(status.operation.partition(" ")[0], _NAME_LENGTH)


def _at(status: RankStatus) -> str:
    return f" at {status.place}" if status.place else ""


def _subject(group: Sequence[RankStatus]) -> str:
    return ranks(status.rank for status in group)


def _have(group: Sequence[RankStatus]) -> str:
    return "has" if len(group) == 1 else "have"


def _time_range(group: Sequence[RankStatus]) -> tuple[float, float]:
    """Shortest and longest time in their activity."""
    times = [status.lasting for status in group]
    return min(times), max(times)


def _format_time(group: Sequence[RankStatus]) -> str:
    low, high = _time_range(group)
    return f"{lasting(low)} to {lasting(high)}" if high - low >= 2 else lasting(low)


def _numbers(group: Iterable[RankStatus]) -> set[int]:
    return {status.rank for status in group}


def _group_alike(statuses: Iterable[RankStatus]) -> list[list[RankStatus]]:
    """Ranks grouped by activity and place."""
    by_rank = {status.rank: status for status in statuses}
    by_kind = alike({rank: _kind(status) for rank, status in by_rank.items()})
    return [[by_rank[rank] for rank in numbers] for numbers in by_kind.values()]


def _kind(one: RankStatus) -> tuple[object, ...]:
    """Grouping key: equal for ranks with the same activity and place, whatever their times."""
    is_running = one.activity == "running"  # not shown for ranks that wait
    state = is_running and (one.computes, one.unheard, one.call)
    return one.phase, one.activity, one.returned, state, one.operation, one.missing, one.place


# ---------------------------------------------------------------- where they are


def groups(statuses: Iterable[RankStatus], answers: Mapping[int, StackGroup]) -> list[StackGroup]:
    """Places of the running ranks: groups that wait for nobody first, then the smallest. Groups
    beyond the first few have no stack."""
    running = {s.rank: s for s in statuses if s.phase not in ENDED}
    no_answer = StackGroup((), "", "", "not responding")
    answer_by_rank = {
        rank: (_kind(s), replace(answers.get(rank, no_answer), ranks=()))
        for rank, s in running.items()
    }
    places = []
    for (_, answer), numbers in alike(answer_by_rank).items():
        group = [running[rank] for rank in numbers]
        place = answer.place or group[0].place
        notes = "; ".join(filter(None, [_note(group), answer.note]))
        places.append(StackGroup(numbers, place, shortened(answer.stack, _STACK_LENGTH), notes))
    places.sort(key=lambda group: _oddness([running[rank] for rank in group.ranks]))
    return [*places[:_MAX_GROUPS], *(replace(group, stack="") for group in places[_MAX_GROUPS:])]


def _note(group: Sequence[RankStatus]) -> str:
    """Their collective in full, beside their stack."""
    status = group[0]
    if not status.in_collective:
        return ""
    target = f" for {ranks(status.missing)}" if status.missing else ""
    return f"waiting {_format_time(group)} in {status.operation}{target}"


def why_over(before: Iterable[int], statuses: Iterable[RankStatus]) -> str:
    """The reason why a hang of the ranks `before` is over."""
    phases = {s.rank: s.phase for s in statuses}
    ended = [rank for rank in before if phases.get(rank) in ENDED]
    moving = [rank for rank in before if rank not in ended]
    clauses = [
        f"{ranks(who, _LIMIT)} {'is' if len(who) == 1 else 'are'} {what}"
        for who, what in ((ended, "no longer running"), (moving, "making progress again"))
        if who
    ]
    return capital(listed(clauses))

"""The most important thing about a run, in one sentence: what ended it, else what holds it up, else
how many ranks run.

Nothing is said that samples do not show: who waits, for whom and how long is counted in the ranks,
and what is true of steps is so of all of the last twenty seconds or so.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from xla_nb import wording
from xla_nb.record.sample import INPUT, LOCK
from xla_nb.run.state import ENDED
from xla_nb.run.verdict import lasting
from xla_nb.views import facts, lanes
from xla_nb.views.lanes import Pace
from xla_nb.views.snapshot import Card, Diagnosis, Snapshot
from xla_nb.wording import ranks, several

Paces = Mapping[int, Pace | None]

_LONG = 3.0  # seconds of a wait, from which it is told
_ENOUGH = 10  # steps, from which something is said of them
_SECONDS = 4.0  # of steps, at least
_MARGIN = 0.05  # of a step, by which the slowest rank is slower at least,
_WAITING = 0.1  # and the share of their time for which the others wait at least
_ABREAST = 1.25  # times as long from step to step in one rank as in another, at most
_EACH = 0.9  # of the steps are as good as every step
_GRAPHS = 8  # compiled in as many steps, from which that is told
_LOADING = 0.2  # share of the time waiting for data, from which that is told
_KEPT = 3.0  # seconds for which a sentence about steps stays when it is no longer true: no flicker
_STEADY = 2.0  # seconds for which its numbers stay


def diagnose(snapshot: Snapshot, paces: Paces) -> Diagnosis:
    """The diagnosis of this moment. `paces` are the last steps of each rank."""
    return _ended(snapshot) or _now(snapshot) or _lately(snapshot, paces) or _calm(snapshot)


class Diagnoser:
    """Diagnoses one run again and again, without flicker."""

    def __init__(self) -> None:
        self._lately: Diagnosis | None = None
        self._found = self._worded = float("-inf")  # when: seen the last time, put into words

    def look(self, snapshot: Snapshot, paces: Paces) -> Diagnosis:
        """The diagnosis of a newer moment."""
        lately = None if snapshot.ok is not None else _lately(snapshot, paces)
        self._keep(lately, snapshot.now)
        if not _running(snapshot):  # of live ranks that are idle, say
            self._lately = None
        return _ended(snapshot) or _now(snapshot) or self._lately or _calm(snapshot)

    def _keep(self, new: Diagnosis | None, now: float) -> None:
        if new is None:
            if not 0 <= now - self._found < _KEPT:
                self._lately = None
            return
        self._found = now
        alike = self._lately is not None and _shape(self._lately) == _shape(new)
        if not alike or not 0 <= now - self._worded < _STEADY:
            self._lately, self._worded = new, now


def _shape(diagnosis: Diagnosis) -> tuple[object, ...]:
    """What it says, but for the numbers."""
    return re.sub(r"[\d.,]+", "#", diagnosis.sentence), diagnosis.level, diagnosis.ranks


def _ended(snapshot: Snapshot) -> Diagnosis | None:
    if snapshot.ok is None:
        return None
    calm = snapshot.ok or (bool(snapshot.stopping) and not snapshot.troubles)
    first = (trouble.ranks for trouble in snapshot.troubles if trouble.first)
    early = tuple(card.rank for card in snapshot.cards if card.phase == "early")
    found, told = snapshot.conclusion, snapshot.headline
    sentence = facts.ended(told, found, ok=snapshot.ok, elapsed=snapshot.elapsed)
    if found is not None and calm:
        return Diagnosis(sentence, "warning", found.ranks)
    return Diagnosis(sentence, "calm" if calm else "bad", early or next(first, ()))


def _now(snapshot: Snapshot) -> Diagnosis | None:
    """What is wrong at this moment, of a run in progress."""
    looks = (_hang, _stopping, _failed, _cut_off, _asking, _wrong, _waited_for)
    return next((found for look in looks if (found := look(snapshot)) is not None), None)


def _lately(snapshot: Snapshot, paces: Paces) -> Diagnosis | None:
    """What was wrong in all of its last steps."""
    running = {card.rank for card in _running(snapshot)}
    own = {rank: pace for rank, pace in paces.items() if pace and rank in running}
    looks: tuple[Callable[[Snapshot, Mapping[int, Pace]], Diagnosis | None], ...] = (
        _slowest,
        _compiled_again,
        _fallen_back,
        _loading,
    )
    return next((found for look in looks if (found := look(snapshot, own)) is not None), None)


def _calm(snapshot: Snapshot) -> Diagnosis:
    long = (card.phase == "compiling" and card.sample.compiling >= 1 for card in snapshot.cards)
    if snapshot.cards and all(long):
        return Diagnosis(f"{several(len(snapshot.cards), snapshot.unit)} compiling")
    return Diagnosis(snapshot.headline)


# ---------------------------------------------------------------- at this moment


def _hang(snapshot: Snapshot) -> Diagnosis | None:
    if snapshot.hang is None:
        return None
    own = (group.ranks for group in snapshot.hang.groups)
    since = snapshot.now - snapshot.hang.at  # its own times are those of the report
    when = f" (reported {lasting(since)} ago)" if since >= _LONG else ""
    return Diagnosis(f"{snapshot.hang.verdict}{when}", "bad", tuple(next(own, ())))


def _stopping(snapshot: Snapshot) -> Diagnosis | None:
    if not snapshot.stopping:
        return None
    broken = _broken(snapshot)
    return Diagnosis(_and_who_runs(snapshot), "bad" if broken else "warning", broken)


def _failed(snapshot: Snapshot) -> Diagnosis | None:
    broken = _broken(snapshot)
    if not broken and not snapshot.lost:
        return None
    return Diagnosis(_and_who_runs(snapshot), "bad", broken)


def _cut_off(snapshot: Snapshot) -> Diagnosis | None:
    if snapshot.live is None or not snapshot.live.cut_off:
        return None
    return Diagnosis(snapshot.headline, "bad")


def _and_who_runs(snapshot: Snapshot) -> str:
    left = [card.rank for card in _there(snapshot)]
    if not left:
        return snapshot.headline
    if snapshot.live is not None:
        are = "is" if len(left) == 1 else "are"
        return f"{snapshot.headline}; {ranks(left)} {are} alive"
    return f"{snapshot.headline}; {several(len(left), snapshot.unit)} still running"


def _broken(snapshot: Snapshot) -> tuple[int, ...]:
    """Who failed first, and with the same error."""
    first = [trouble.ranks for trouble in snapshot.troubles if trouble.first]
    return tuple(first[0]) if first else ()


def _asking(snapshot: Snapshot) -> Diagnosis | None:
    """Nothing goes on before the person at the notebook answers."""
    asks = [card for card in snapshot.cards if card.sample.operation == INPUT]
    if not asks or any(card.phase != "waiting" for card in asks):
        return None
    asking = [card.rank for card in asks]
    wait = "waits" if len(asking) == 1 else "wait"
    place, *others = {card.place for card in asks}
    where = f" at {_line(place, snapshot)}" if place and not others else ""
    told = f"{ranks(asking).capitalize()} {wait} for an answer to `{INPUT}`{where}"
    return Diagnosis(told, "warning", tuple(asking))


def _wrong(snapshot: Snapshot) -> Diagnosis | None:
    """What is computed is wrong."""
    found = snapshot.conclusion
    if found is None or not found.wrong:
        return None
    return Diagnosis(found.sentence, "warning", found.ranks)  # it may begin with a name


def _waited_for(snapshot: Snapshot) -> Diagnosis | None:
    """Who has waited longest, for whom, and where that one is."""
    by_rank = {card.rank: card for card in snapshot.cards}
    groups: dict[tuple[bool, tuple[int, ...]], list[Card]] = {}
    for card in snapshot.cards:
        missing = _missing(card, by_rank)
        locked = card.sample.operation == LOCK
        if card.phase == "waiting" and _waited(card) >= _LONG and (missing or locked):
            groups.setdefault((locked, missing), []).append(card)
    if not groups:
        return None
    (locked, missing), waiting = max(groups.items(), key=lambda group: _longest(group[1]))
    who = ranks(card.rank for card in waiting).capitalize()
    if len(waiting) > 1:
        who = several(len(waiting), "rank")
    have = "has" if len(waiting) == 1 else "have"
    up = "up to " if _longest(waiting) - min(map(_waited, waiting)) >= 2 else ""
    long = f"{who} {have} waited {up}{lasting(_longest(waiting))} for"
    if locked and not missing:
        return Diagnosis(f"{long} `lock`", "warning", ())
    if locked and [card.rank for card in waiting] == list(missing):
        return Diagnosis(f"{long} `lock`, which it holds itself", "warning", missing)
    whom = ranks(missing)
    where = _where([by_rank[rank] for rank in missing], waiting, snapshot)
    if locked:
        return Diagnosis(f"{long} `lock`, which {whom} holds{where}", "warning", missing)
    return Diagnosis(f"{long} {whom}{where}", "warning", missing)


def _missing(card: Card, by_rank: Mapping[int, Card]) -> tuple[int, ...]:
    """Whom it waits for. What is known of ranks is of different times: one that waits in the same
    collective by now has come, and one that has ended since may have."""

    def came(other: Card) -> bool:
        if other.phase in ENDED or other.phase == "early":
            return other.since is not None and card.sample.at <= other.since
        same = other.sample.operation == card.sample.operation
        return other.phase == "waiting" and same and card.sample.operation != LOCK

    return tuple(
        rank for rank in card.sample.missing if rank in by_rank and not came(by_rank[rank])
    )


def _waited(card: Card) -> float:
    """Both by the clock of its own host."""
    return max(0.0, card.sample.at - card.sample.since)


def _longest(cards: Iterable[Card]) -> float:
    return max(map(_waited, cards))


def _where(cards: Sequence[Card], waiting: Sequence[Card], snapshot: Snapshot) -> str:
    """`, at line 6`, or what they do there; nothing where they do different things."""
    told = {_does(card, waiting, snapshot) for card in cards}
    return told.pop() if len(told) == 1 else ""


def _does(card: Card, waiting: Sequence[Card], snapshot: Snapshot) -> str:
    at = f" at {_line(card.place, snapshot)}" if card.place else ""
    if card.phase == "starting":
        return ", still starting"
    if card.phase in ENDED or card.phase == "early":
        return f", which has {'returned' if card.phase in ('finished', 'early') else 'ended'}"
    if card.phase == "compiling":
        return f", compiling{at}"
    if card.phase == "waiting" and card.sample.operation == LOCK:
        return f", which waits for `lock`{at}{_holder(card, waiting)}"
    if card.phase == "waiting":
        return f", in {_name(card)}{at}"
    if card.phase == "idle":
        return ", which runs no cell"
    if card.sample.returned:
        return ", sending its result"
    return f",{at}" if at else ""


def _holder(card: Card, waiting: Sequence[Card]) -> str:
    """Who holds the lock that a rank waits for, if that is known; it may be one that waits for this
    rank."""
    holders = card.sample.missing
    if not holders:
        return ""
    of_them = len(waiting) > 1 and holders[0] in {other.rank for other in waiting}
    return f", held by {ranks(holders)}{f', one of the {len(waiting):,}' if of_them else ''}"


def _name(card: Card) -> str:
    return wording.in_one_line(card.sample.operation.partition(" ")[0], 40)


def _line(place: str, snapshot: Snapshot) -> str:
    """`line 6` of the run's own cell, else the whole place."""
    cell, _, line = place.rpartition(", line ")
    return f"line {line}" if cell == snapshot.cell else place


# ---------------------------------------------------------------- in the last steps


def _slowest(snapshot: Snapshot, paces: Mapping[int, Pace]) -> Diagnosis | None:
    """Ranks whose own work takes clearly longer, all the time, while the others wait."""
    waits = {card.rank: card.waits for card in _running(snapshot)}
    if len(paces) < max(2, len(waits)) or not all(map(_tells, paces.values())):
        return None
    periods = [pace.seconds / pace.steps for pace in paces.values()]
    if max(periods) > _ABREAST * min(periods):
        return None  # they do not take the same steps
    slow = _apart({rank: pace.step for rank, pace in paces.items()})
    halves = [{rank: pace.halves[half] for rank, pace in paces.items()} for half in (0, 1)]
    others = [rank for rank in paces if rank not in slow]
    if not slow or any(_apart(half) != slow for half in halves):
        return None
    if 3 * len(slow) > max(3, len(paces)):
        return None
    usual = statistics.median(paces[rank].step for rank in others)
    more = _more({rank: pace.step for rank, pace in paces.items()}, slow)
    if min(_more(half, slow) for half in halves) < more / 2:
        return None  # it was slow for a while, of which the other half has a trace
    known = [share for rank in others if (share := waits[rank]) is not None]
    own = [share for rank in slow if (share := waits[rank]) is not None]
    if len(known) < len(others) or len(own) < len(slow) or more < _MARGIN * usual:
        return None
    waiting = statistics.median(known)
    if waiting < _WAITING or max(own) > waiting / 2:
        return None
    loading = statistics.median(paces[rank].data for rank in others)
    cause = min(paces[rank].data for rank in slow) - loading >= more / 2
    who = f"{ranks(slow).capitalize()} {'is' if len(slow) == 1 else 'are'} the slowest"
    told = f"{who}, by {_span(more)} a step{', waiting for data' if cause else ''}"
    wait = "the other waits" if len(others) == 1 else "the others wait"
    return Diagnosis(f"{told}; {wait} {100 * waiting:.0f} % of the time", "warning", tuple(slow))


def _tells(pace: Pace) -> bool:
    return pace.steps >= _ENOUGH and pace.seconds >= _SECONDS


def _apart(steps: Mapping[int, float]) -> list[int]:
    """The ranks nearer to the slowest one than to the usual one."""
    limit = (statistics.median_low(steps.values()) + max(steps.values())) / 2
    return sorted(rank for rank, step in steps.items() if step > limit)


def _more(steps: Mapping[int, float], slow: Sequence[int]) -> float:
    """Seconds by which the slow ranks' steps are longer than the others' usual one."""
    usual = statistics.median(step for rank, step in steps.items() if rank not in slow)
    return min(steps[rank] for rank in slow) - usual


def _span(seconds: float) -> str:
    if seconds < 0.00095:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.0f} ms" if seconds < 0.9995 else f"{seconds:.1f} s"


def _compiled_again(snapshot: Snapshot, paces: Mapping[int, Pace]) -> Diagnosis | None:
    """A graph is compiled in nearly every step."""
    again = {
        rank: pace
        for rank, pace in paces.items()
        if pace.compiles >= max(_GRAPHS, _EACH * pace.compiling_steps)
        and pace.compiling_steps >= _GRAPHS
    }
    if not again:
        return None
    one = max(again.values(), key=lambda pace: (bool(pace.place), pace.compiles))
    what = f"{one.compiles:,} graphs in {one.compiling_steps:,} steps"
    some = _some(again, snapshot)
    who = _who(again, snapshot, "Each rank")
    if one.place:
        line = _line(one.place, snapshot)
        who = f"{line[0].upper()}{line[1:]}"
    return Diagnosis(f"{who} compiled {what}", "warning", some)


def _fallen_back(snapshot: Snapshot, paces: Mapping[int, Pace]) -> Diagnosis | None:
    """Operators that have no implementation on the device run on the CPU in each step."""
    names: dict[str, set[int]] = {}
    for rank, pace in paces.items():
        for name, calls in (pace.fallbacks or {}).items():
            if calls >= _EACH and _tells(pace):
                names.setdefault(name, set()).add(rank)
    if not names:
        return None
    who = {rank for each in names.values() for rank in each}
    run = "runs" if len(names) == 1 else "run"
    told = f"{wording.listed(names, most=2)} {run} on the CPU in every step"
    return Diagnosis(told, "warning", _some(who, snapshot))


def _loading(snapshot: Snapshot, paces: Mapping[int, Pace]) -> Diagnosis | None:
    """Ranks wait for their data for much of the time."""
    shares = {
        card.rank: share
        for card in _running(snapshot)
        if len(card.lane) > _SECONDS
        and (share := lanes.share(card.lane, "data")) is not None
        and share >= _LOADING
    }
    if not shares:
        return None
    who = _who(shares, snapshot, "The ranks")
    wait = "waits" if len(shares) == 1 or snapshot.unit == "device" else "wait"
    told = f"{who} {wait} for data {100 * statistics.median(shares.values()):.0f} % of the time"
    return Diagnosis(told, "warning", _some(shares, snapshot))


def _some(who: Iterable[int], snapshot: Snapshot) -> tuple[int, ...]:
    """The ranks to be marked: none if it is true of all, or of the one process of all devices."""
    numbers = sorted(set(who))
    every = snapshot.unit == "device" or len(numbers) >= len(_there(snapshot))
    return () if every else tuple(numbers)


def _who(numbers: Collection[int], snapshot: Snapshot, every: str) -> str:
    """`Rank 3`; `every` where it is true of all."""
    if snapshot.unit == "device":
        return "The process"
    if len(numbers) > 1 and not _some(numbers, snapshot):
        return every
    return ranks(numbers).capitalize()


def _there(snapshot: Snapshot) -> list[Card]:
    """The ranks that have not ended; of live ones not all run."""
    return [card for card in snapshot.cards if card.phase == "idle"] + _running(snapshot)


def _running(snapshot: Snapshot) -> list[Card]:
    return [
        card
        for card in snapshot.cards
        if card.phase in ("starting", "running", "compiling", "waiting")
    ]

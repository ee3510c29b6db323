"""The most important thing about a run, in one sentence: what ended it, else what holds it up, else
how many ranks run.

Nothing is said that samples do not show: who waits, for whom and how long is counted in the ranks,
and what is true of steps is so of all of the last twenty seconds or so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from xla_nb import ansi, wording
from xla_nb.messages.events import Concluded
from xla_nb.record.sample import DATA, INPUT, LOCK
from xla_nb.run import conclusions
from xla_nb.run.conclusions import Window
from xla_nb.run.state import ENDED
from xla_nb.run.verdict import lasting
from xla_nb.views import facts
from xla_nb.views.snapshot import Card, Diagnosis, Snapshot
from xla_nb.wording import ranks, several

Paces = Mapping[int, Window | None]

_LONG = 3.0  # seconds of a wait, from which it is told
_KEPT = 3.0  # seconds for which a sentence about steps stays when it is no longer true: no flicker
_STEADY = 2.0  # seconds for which its numbers stay


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
        calm = Diagnosis(snapshot.headline)
        return _ended(snapshot) or _now(snapshot) or self._lately or calm

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


def ended(headline: str, conclusion: Concluded | None, *, ok: bool, elapsed: float) -> str:
    """How a run ended, with what it suffered from:
    `4 ranks finished in 27.9 s; line 9 compiled in every step, 26 s of it`."""
    if conclusion is None or (not ok and conclusion.wrong):
        return headline  # which has what is wrong
    told = f"{',' if conclusion.calm else ';'} {ansi.plain(conclusion.sentence)}"
    if ok:
        return f"{headline} in {facts.took(elapsed)}{told}"
    return f"{headline} after {facts.took(elapsed)}{told}" if conclusion.calm else headline + told


def _ended(snapshot: Snapshot) -> Diagnosis | None:
    if snapshot.ok is None:
        return None
    calm = snapshot.ok or (bool(snapshot.stopping) and not snapshot.troubles)
    first = (trouble.ranks for trouble in snapshot.troubles if trouble.first)
    early = tuple(card.rank for card in snapshot.cards if card.phase == "early")
    found, told = snapshot.conclusion, snapshot.headline
    sentence = ended(told, found, ok=snapshot.ok, elapsed=snapshot.elapsed)
    if found is not None and calm and not found.calm:
        return Diagnosis(sentence, "warning", found.ranks)
    return Diagnosis(sentence, "calm" if calm else "bad", early or next(first, ()))


def _now(snapshot: Snapshot) -> Diagnosis | None:
    """What is wrong at this moment, of a run in progress."""
    looks = (_hang, _stopping, _failed, _wrong, _asking, _waited_for)
    return next((found for look in looks if (found := look(snapshot)) is not None), None)


def _lately(snapshot: Snapshot, paces: Paces) -> Diagnosis | None:
    """What was wrong in its last steps."""
    running = {card.rank for card in _running(snapshot)}
    own = {rank: pace for rank, pace in paces.items() if pace and rank in running}
    everybody = len(own) if snapshot.unit == "device" else len(_there(snapshot))
    if (found := conclusions.lately(snapshot.cell, own, everybody)) is None:
        return None
    told = f"{found.sentence[:1].upper()}{found.sentence[1:]}"
    return Diagnosis(told, "warning", found.ranks)


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


def _and_who_runs(snapshot: Snapshot) -> str:
    left = [card.rank for card in _there(snapshot)]
    wait = all(card.phase == "waiting" for card in _there(snapshot))
    if not left:
        return snapshot.headline
    headline = snapshot.headline.removesuffix(".")  # of an error's message
    if snapshot.live is not None:
        are = "is" if len(left) == 1 else "are"
        return f"{headline}; {ranks(left)} {are} alive"
    what = f"still {'waiting' if wait else 'running'}"
    return f"{headline}; {several(len(left), snapshot.unit)} {what}"


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
    told = f"{ranks(asking).capitalize()} {wait} for an answer{where}"
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
        waits = other.sample.activity == "waiting"  # it may have come a moment ago
        return waits and same and card.sample.operation != LOCK

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
        has_it = waiting[0].sample.operation == LOCK  # since a moment ago: it has waited till then
        return "" if has_it else f", which waits for `lock`{at}{_holder(card, waiting)}"
    if card.phase == "waiting" and (call := card.sample.operation):
        return f", {'waiting for data' if call == DATA else f'in {_name(card)}'}{at}"
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
    return conclusions.line(place, snapshot.cell)


def _there(snapshot: Snapshot) -> list[Card]:
    """The ranks that have not ended; of live ones not all run."""
    return [card for card in snapshot.cards if card.phase == "idle"] + _running(snapshot)


def _running(snapshot: Snapshot) -> list[Card]:
    return [
        card
        for card in snapshot.cards
        if card.phase in ("starting", "running", "compiling", "waiting")
    ]

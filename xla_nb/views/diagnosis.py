"""Diagnose a run in one sentence: the cause of its end, else the current delay, else the number of
running ranks.

A diagnosis states only what samples show: the ranks themselves count who waits, for whom and how
long, and a statement about steps holds for all steps of about the last twenty seconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import cast

from xla_nb import ansi
from xla_nb.messages.events import Concluded
from xla_nb.record.sample import INPUT, Activity
from xla_nb.run import conclusions, state, waits
from xla_nb.run.activity import RankStatus, Window, missing
from xla_nb.run.waits import lasting
from xla_nb.views import facts
from xla_nb.views.snapshot import UNDER_WAY, Card, Diagnosis, Snapshot
from xla_nb.wording import ranks, several

Paces = Mapping[int, Window | None]

_LONG = 1.0  # age of a hang report in seconds from which the age is shown
_OVER = ("early", *state.ENDED)
_KEPT = 3.0  # seconds for which a sentence about steps outlasts its truth, against flicker
_STEADY = 2.0  # seconds for which its numbers stay unchanged


class Diagnoser:
    """Diagnoses one run repeatedly, without flicker."""

    def __init__(self) -> None:
        self._lately: Diagnosis | None = None
        self._running: list[int] = []  # ranks that were running at the last look
        self._found = self._worded = float("-inf")  # times: last seen, last worded

    def look(self, snapshot: Snapshot, paces: Paces) -> Diagnosis:
        """Diagnose a newer snapshot."""
        lately = None if snapshot.ok is not None else _lately(snapshot, paces)
        running = [card.rank for card in _running(snapshot)]
        if running != self._running:  # an outdated sentence will not become true again
            self._lately, self._running = None, running
        self._keep(lately, snapshot.now)
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
    """A diagnosis without its numbers, for comparison."""
    return re.sub(r"[\d.,]+", "#", diagnosis.sentence), diagnosis.level, diagnosis.ranks


def ended(headline: str, conclusion: Concluded | None, *, ok: bool, elapsed: float) -> str:
    """Describe how a run ended, including its conclusion: `4 ranks finished in 27.9 s; line 9
    compiled in every step, 26 s of it`."""
    if conclusion is None or (not ok and conclusion.wrong):
        return headline  # which includes the conclusion
    told = f"{',' if conclusion.calm else ';'} {ansi.plain(conclusion.sentence)}"
    if ok:
        return f"{headline} in {facts.took(elapsed)}{told}"
    over = f"; ended after {facts.took(elapsed)}" if conclusion.calm else ""
    return headline + over + told


def _ended(snapshot: Snapshot) -> Diagnosis | None:
    if snapshot.ok is None:
        return None
    calm = snapshot.ok or (bool(snapshot.stopping) and not snapshot.troubles)
    early = tuple(card.rank for card in snapshot.cards if card.phase == "early")
    found, told = snapshot.conclusion, snapshot.headline
    sentence = ended(told, found, ok=snapshot.ok, elapsed=snapshot.elapsed)
    if found is not None and calm and not found.calm:
        return Diagnosis(sentence, "warning", found.ranks)
    return Diagnosis(sentence, "calm" if calm else "bad", early or _broken(snapshot))


def _now(snapshot: Snapshot) -> Diagnosis | None:
    """The current problem of a run in progress."""
    looks = (_hang, _ending, _wrong, _asking, _waited_for)
    return next((found for look in looks if (found := look(snapshot)) is not None), None)


def _lately(snapshot: Snapshot, paces: Paces) -> Diagnosis | None:
    """The problem in the last steps of a run."""
    running = {card.rank for card in _running(snapshot)}
    own = {rank: pace for rank, pace in paces.items() if pace and rank in running}
    everybody, total = len(_there(snapshot)), len(snapshot.cards)
    if snapshot.unit == "device":
        everybody = total = len(own)
    if (found := conclusions.lately(snapshot.cell, own, everybody, total)) is None:
        return None
    return Diagnosis(waits.capital(found.sentence), "warning", found.ranks)


# ---------------------------------------------------------------- at this moment


def _hang(snapshot: Snapshot) -> Diagnosis | None:
    if snapshot.hang is None:
        return None
    told = snapshot.hang.verdict
    own = (
        group.ranks
        for group in snapshot.hang.groups
        if re.search(rf"\b{ranks(group.ranks)}\b", told, re.IGNORECASE)
    )
    since = snapshot.now - snapshot.hang.at  # times in the verdict are as of the report
    when = f" (reported {lasting(since)} ago)" if since >= _LONG else ""
    return Diagnosis(f"{told}{when}", "bad", tuple(next(own, snapshot.hang.ranks)))


def _ending(snapshot: Snapshot) -> Diagnosis | None:
    """Why the run is stopping or lost ranks, and which ranks are left."""
    broken = _broken(snapshot)
    if not (snapshot.stopping or broken or snapshot.lost):
        return None
    calm = snapshot.stopping and not broken
    return Diagnosis(_and_who_runs(snapshot), "warning" if calm else "bad", broken)


def _and_who_runs(snapshot: Snapshot) -> str:
    left = _there(snapshot)
    headline = snapshot.headline.removesuffix(".")  # from an error message
    if not left:
        return snapshot.headline
    if snapshot.live is not None:
        are = "is" if len(left) == 1 else "are"
        return f"{headline}; {ranks(card.rank for card in left)} {are} alive"
    does = "waiting" if all(card.phase == "waiting" for card in left) else "running"
    return f"{headline}; {several(len(left), snapshot.unit)} still {does}"


def _broken(snapshot: Snapshot) -> tuple[int, ...]:
    """The ranks that failed first, with the same error."""
    return next((trouble.ranks for trouble in snapshot.troubles if trouble.first), ())


def _asking(snapshot: Snapshot) -> Diagnosis | None:
    """Ranks wait for an answer from the person at the notebook."""
    asks = [card for card in snapshot.cards if card.sample.operation == INPUT]
    if not asks or any(card.phase != "waiting" for card in asks):
        return None
    place, *others = {card.place for card in asks}
    where = f" at {waits.line(place, snapshot.cell)}" if place and not others else ""
    asking = tuple(card.rank for card in asks)
    who = f"{ranks(asking).capitalize()} {'waits' if len(asks) == 1 else 'wait'}"
    return Diagnosis(f"{who} for an answer{where}", "warning", asking)


def _wrong(snapshot: Snapshot) -> Diagnosis | None:
    """The results are wrong, such as figures that are NaN."""
    found = snapshot.conclusion
    if found is None or not found.wrong:
        return None
    return Diagnosis(found.sentence, "warning", found.ranks)  # it may begin with a name


def _waited_for(snapshot: Snapshot) -> Diagnosis | None:
    """Which ranks have waited longest, for which rank, and where that rank is."""
    ended = {card.rank: card.since for card in snapshot.cards if card.phase in _OVER and card.since}
    statuses = [_status(card, snapshot, ended) for card in snapshot.cards]
    found = waits.longest(statuses, snapshot.cell)
    if found is None:
        return None
    return Diagnosis(waits.capital(found.sentence), "warning", found.ranks)


def _status(card: Card, snapshot: Snapshot, ended: Mapping[int, float]) -> RankStatus:
    """The status in the rank's row; its duration extends beyond the newest sample."""
    if card.phase in _OVER or card.phase == "starting":
        phase = "finished" if card.phase == "early" else card.phase
        return RankStatus(card.rank, cast(state.Phase, phase), place=card.place)
    own = card.sample
    # As counted in its row, unless the clocks of several hosts may differ.
    now = own.at if card.since is None or len(snapshot.hosts) > 1 else snapshot.now
    return RankStatus(
        card.rank,
        lasting=max(0.0, now - own.since),
        activity=cast(Activity, card.phase),
        operation=own.operation,
        missing=missing(own, ended),
        place=card.place,
        returned=own.returned,
    )


def _there(snapshot: Snapshot) -> list[Card]:
    """The ranks that have not ended; live ranks among them may be idle."""
    return [card for card in snapshot.cards if card.phase == "idle"] + _running(snapshot)


def _running(snapshot: Snapshot) -> list[Card]:
    return [card for card in snapshot.cards if card.phase in UNDER_WAY]

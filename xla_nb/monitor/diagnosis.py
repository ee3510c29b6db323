"""Diagnose a run in one sentence: the cause of its end, else the current delay, else the number of
running ranks.

A diagnosis states only what samples show: the ranks themselves count who waits, for whom and how
long, and a statement about steps holds for all steps of about the last twenty seconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from xla_nb import ansi
from xla_nb.messages.events import Concluded
from xla_nb.monitor import conclusions, state, waits
from xla_nb.monitor.activity import RankStatus, Window
from xla_nb.monitor.snapshot import ENDED, UNDER_WAY, Card, Diagnosis, Snapshot
from xla_nb.record.sample import INPUT, Activity
from xla_nb.wording import lasting, ranks, several, took

Paces = Mapping[int, Window | None]

_MIN_AGE = 1.0  # age of a hang report in seconds from which the age is shown
_KEEP = 3.0  # seconds for which a sentence about steps stays unchanged, unless another one holds


class Diagnoser:
    """Diagnoses one run repeatedly, without flicker."""

    def __init__(self) -> None:
        self._recent: Diagnosis | None = None
        self._running: list[int] = []  # ranks that were running when it was found
        self._found_at = 0.0

    def look(self, snapshot: Snapshot, paces: Paces) -> Diagnosis:
        """Diagnose a newer snapshot."""
        if (urgent := _diagnose_end(snapshot) or _diagnose_now(snapshot)) is not None:
            self._recent = None  # it would return later with old numbers
            return urgent
        running = [card.rank for card in _running(snapshot)]
        new = _diagnose_steps(snapshot, paces)
        is_recent = running == self._running and 0 <= snapshot.now - self._found_at < _KEEP
        if not is_recent or self._recent is None or (new and _shape(new) != _shape(self._recent)):
            self._recent, self._running, self._found_at = new, running, snapshot.now
        return self._recent or Diagnosis(snapshot.headline)


def _shape(diagnosis: Diagnosis) -> tuple[object, ...]:
    """A diagnosis without its numbers, for comparison."""
    return re.sub(r"[\d.,]+", "#", diagnosis.sentence), diagnosis.ranks


def ended(headline: str, conclusion: Concluded | None, *, ok: bool, elapsed: float) -> str:
    """Describe how a run ended, including its conclusion: `4 ranks finished in 27.9 s; line 9
    compiled in every step, 26 s of it`."""
    if conclusion is None or (not ok and conclusion.wrong):
        return headline  # which includes the conclusion
    detail = f"{',' if conclusion.calm else ';'} {ansi.plain(conclusion.sentence)}"
    if ok:
        return f"{headline} in {took(elapsed)}{detail}"
    duration = f"; ended after {took(elapsed)}" if conclusion.calm else ""
    return headline + duration + detail


def _diagnose_end(snapshot: Snapshot) -> Diagnosis | None:
    if snapshot.ok is None:
        return None
    is_calm = snapshot.ok or (bool(snapshot.stopping) and not snapshot.troubles)
    early_ranks = tuple(card.rank for card in snapshot.cards if card.phase == "early")
    conclusion, headline = snapshot.conclusion, snapshot.headline
    sentence = ended(headline, conclusion, ok=snapshot.ok, elapsed=snapshot.elapsed)
    if conclusion is not None and is_calm and not conclusion.calm:
        return Diagnosis(sentence, "warning", conclusion.ranks)
    return Diagnosis(sentence, "calm" if is_calm else "bad", early_ranks or _first_failed(snapshot))


def _diagnose_now(snapshot: Snapshot) -> Diagnosis | None:
    """The current problem of a run in progress."""
    checks = (_find_hang, _find_stop, _find_wrong_results, _find_questions, _find_waits)
    return next((diagnosis for check in checks if (diagnosis := check(snapshot)) is not None), None)


def _diagnose_steps(snapshot: Snapshot, paces: Paces) -> Diagnosis | None:
    """The problem in the last steps of a run."""
    running = {card.rank for card in _running(snapshot)}
    running_paces = {rank: pace for rank, pace in paces.items() if pace and rank in running}
    alive, total = len(_alive(snapshot)), len(snapshot.cards)
    conclusion = conclusions.lately(snapshot.cell, running_paces, alive, total)
    if conclusion is None:
        return None
    return Diagnosis(waits.capital(conclusion.sentence), "warning", conclusion.ranks)


# ---------------------------------------------------------------- at this moment


def _find_hang(snapshot: Snapshot) -> Diagnosis | None:
    if snapshot.hang is None:
        return None
    age = snapshot.now - snapshot.hang.at  # times in the verdict are as of the report
    note = f" (reported {lasting(age)} ago)" if age >= _MIN_AGE else ""
    marked = snapshot.hang.culprits or snapshot.hang.ranks
    return Diagnosis(f"{snapshot.hang.verdict}{note}", "bad", marked)


def _find_stop(snapshot: Snapshot) -> Diagnosis | None:
    """Why the run is stopping or lost ranks, and which ranks are left."""
    failed = _first_failed(snapshot)
    if not (snapshot.stopping or failed or snapshot.lost):
        return None
    is_calm = snapshot.stopping and not failed
    return Diagnosis(_headline_of_stop(snapshot), "warning" if is_calm else "bad", failed)


def _headline_of_stop(snapshot: Snapshot) -> str:
    alive = _alive(snapshot)
    headline = snapshot.headline.removesuffix(".")  # from an error message
    if not alive:
        return snapshot.headline
    if snapshot.live is not None:
        verb = "is" if len(alive) == 1 else "are"
        return f"{headline}; {ranks(card.rank for card in alive)} {verb} alive"
    activity = "waiting" if all(card.phase == "waiting" for card in alive) else "running"
    return f"{headline}; {several(len(alive), 'rank')} still {activity}"


def _first_failed(snapshot: Snapshot) -> tuple[int, ...]:
    """The ranks that failed first, with the same error."""
    return next((trouble.ranks for trouble in snapshot.troubles if trouble.first), ())


def _find_questions(snapshot: Snapshot) -> Diagnosis | None:
    """Ranks wait for an answer from the person at the notebook."""
    asking = [card for card in snapshot.cards if card.sample.operation == INPUT]
    if not asking or any(card.phase != "waiting" for card in asking):
        return None
    place, *others = {card.place for card in asking}
    where = f" at {waits.line(place, snapshot.cell)}" if place and not others else ""
    asking_ranks = tuple(card.rank for card in asking)
    subject = f"{ranks(asking_ranks).capitalize()} {'waits' if len(asking) == 1 else 'wait'}"
    return Diagnosis(f"{subject} for an answer{where}", "warning", asking_ranks)


def _find_wrong_results(snapshot: Snapshot) -> Diagnosis | None:
    """The results are wrong, such as figures that are NaN."""
    conclusion = snapshot.conclusion
    if conclusion is None or not conclusion.wrong:
        return None
    return Diagnosis(conclusion.sentence, "warning", conclusion.ranks)  # it may begin with a name


def _find_waits(snapshot: Snapshot) -> Diagnosis | None:
    """Which ranks have waited longest, for which rank, and where that rank is."""
    ends = {card.rank: card.since for card in snapshot.cards if card.phase in ENDED and card.since}
    statuses = [_status(card, snapshot, ends) for card in snapshot.cards]
    wait = waits.longest(statuses, snapshot.cell)
    if wait is None:
        return None
    return Diagnosis(waits.capital(wait.sentence), "warning", wait.ranks)


def _status(card: Card, snapshot: Snapshot, ended: Mapping[int, float]) -> RankStatus:
    """The status in the rank's row; its duration extends beyond the newest sample."""
    if card.phase in ENDED or card.phase == "starting":
        phase = "finished" if card.phase == "early" else card.phase
        return RankStatus(card.rank, cast(state.Phase, phase), place=card.place)
    is_silent = card.phase == "not responding"
    activity = "running" if is_silent else cast(Activity, card.phase)
    sample = replace(card.sample, activity=activity, place=card.place)
    status = RankStatus.of(state.RankState(card.rank, "running"), sample, ended)
    # As counted in its row, unless the clocks of several hosts may differ.
    now = sample.at if card.since is None or len(snapshot.hosts) > 1 else snapshot.now
    return replace(status, lasting=max(0.0, now - sample.since), unheard=is_silent)


def _alive(snapshot: Snapshot) -> list[Card]:
    """The ranks that have not ended; live ranks among them may be idle."""
    return [card for card in snapshot.cards if card.phase == "idle"] + _running(snapshot)


def _running(snapshot: Snapshot) -> list[Card]:
    return [card for card in snapshot.cards if card.phase in UNDER_WAY]

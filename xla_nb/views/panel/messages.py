"""What the panel's page and the kernel say to each other.

The page asks (`fault` checks it); the kernel sends news of what changed, and answers. The page
goes by ids and phases, never by words that are meant for people. docs/how-it-works.md has the
protocol.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from xla_nb import ansi, wording
from xla_nb.messages.events import HangReported, StackGroup
from xla_nb.record.tail import Earlier
from xla_nb.run.activity import Slot
from xla_nb.run.sentences import Trouble
from xla_nb.views import facts
from xla_nb.views.observer import Lines, Observer
from xla_nb.views.snapshot import (
    STREAMS,
    Bar,
    Card,
    Diagnosis,
    Live,
    RanCell,
    Snapshot,
    hosts_in_short,
)

# ---------------------------------------------------------------- from the page

_SHAPES: dict[str, dict[str, tuple[type, ...]]] = {
    "whole": {"page": (str,)},
    "stop": {"request": (int,)},
    "stacks": {"request": (int,)},
    "shutdown": {"request": (int,)},
    "variables": {},
    "no variables": {},
    "focus": {"rank": (int, type(None))},
    "earlier": {
        "request": (int,),
        "rank": (int, type(None)),
        "stream": (str,),
        "before": (int,),
        "count": (int,),
    },
}


def fault(message: object, run: str) -> str:
    """Why a message from the page cannot be acted on; empty if it can."""
    if not isinstance(message, Mapping):
        return "not an object"
    kind = message.get("type")
    if not isinstance(kind, str) or kind not in _SHAPES:
        return f"unknown type {kind!r}"
    if message.get("run") != run:
        return f"for run {message.get('run')!r}"
    for name, types in _SHAPES[kind].items():
        value = message.get(name)
        if not isinstance(value, types) or isinstance(value, bool) or (name not in message):
            return f"invalid {name} {value!r}"
    if kind == "earlier" and message["stream"] not in STREAMS:
        return f"invalid stream {message['stream']!r}"
    if kind == "earlier" and min(message["before"], message["count"]) < 0:
        return f"asks for {message['count']} lines before {message['before']}"
    return ""


# ---------------------------------------------------------------- news


class PanelNews:
    """What the page has been told of a run, and so what is news to it."""

    def __init__(self) -> None:
        self._parts: dict[str, Any] = {}
        self._cards: dict[int, tuple[Card, dict[str, Any]]] = {}
        #: Of each line its generation, how many points it keeps, and its last if it is not kept.
        self._points: dict[tuple[str, int], tuple[int, int, list[Any]]] = {}
        self._lanes: dict[int, tuple[Slot, ...]] = {}
        self._ran: dict[int, RanCell] = {}

    def forget(self, ranks: Collection[int] | None = None) -> None:
        """Tell everything about these ranks again, by default about all: the page may have lost
        it."""
        lost = frozenset(self._cards if ranks is None else ranks)
        self._parts = {}
        if ranks is None:
            self._ran = {}
        self._cards = {rank: card for rank, card in self._cards.items() if rank not in lost}
        self._points = {key: sent for key, sent in self._points.items() if key[1] not in lost}
        self._lanes = {rank: lane for rank, lane in self._lanes.items() if rank not in lost}

    def of(
        self, snapshot: Snapshot, observer: Observer, focus: int | None = None
    ) -> dict[str, Any]:
        """The parts that changed since the last call. `focus` is the rank whose details the page
        shows: of many ranks it alone has a lane."""
        parts: dict[str, Any] = {
            "about": _about(snapshot),
            "bar": None if snapshot.bar is None else _bar(snapshot.bar),
            "troubles": [_trouble(trouble, snapshot) for trouble in snapshot.troubles],
            "hang": None if snapshot.hang is None else _hang(snapshot.hang),
        }
        news = {name: part for name, part in parts.items() if self._parts.get(name, ...) != part}
        self._parts.update(news)
        cards = self._changed(snapshot.cards)
        if cards:
            news["cards"] = cards
        figures = self._figures(observer)
        if figures:
            news["figures"] = figures
        few = len(snapshot.cards) <= _LANES
        lanes = self._seconds(card for card in snapshot.cards if few or card.rank == focus)
        if lanes:
            news["lanes"] = lanes
        if snapshot.live is not None and (ran := self._fresh(snapshot.live)):
            news["ran"] = ran
        return news

    def _fresh(self, live: Live) -> list[dict[str, Any]]:
        """The cells of live ranks that have begun, or ended."""
        fresh = [cell for cell in live.cells if self._ran.get(cell.number) != cell]
        self._ran = {cell.number: cell for cell in live.cells}
        return [
            {
                **vars(cell),
                "outcome": "warning" if cell.found else cell.outcome,
                "told": cell.told,
                "took": facts.took_of(cell),
            }
            for cell in fresh
        ]

    def _seconds(self, cards: Iterable[Card]) -> list[dict[str, Any]]:
        """The seconds of lanes that are new or have changed, of each rank that has any."""
        news = []
        for card in cards:
            sent = {slot.second: slot for slot in self._lanes.get(card.rank, ())}
            # Seconds that stay the same are the same objects.
            changed = [slot for slot in card.lane if sent.get(slot.second) is not slot]
            self._lanes[card.rank] = card.lane
            if changed:
                news.append({"rank": card.rank, "slots": list(map(_slot, changed))})
        return news

    def _changed(self, cards: Sequence[Card]) -> list[dict[str, Any]]:
        """The cards that look different: a newer sample alone is no news."""
        news = []
        for card in cards:
            before, sent = self._cards.get(card.rank, (None, None))
            if before == card:
                continue
            content = _card(card)
            self._cards[card.rank] = card, content
            if sent != content:
                news.append(content)
        return news

    def _figures(self, observer: Observer) -> list[dict[str, Any]]:
        """New points; `drops`: the page's last one, which was none of those that are kept."""
        news = []
        for name, lines in observer.figures.items():
            for rank, line in lines.items():
                generation, count, newest = self._points.get((name, rank), (-1, 0, []))
                fresh, drops = generation != line.generation, bool(newest)
                points = line.points if fresh else line.points[count:]
                if points or newest != line.newest:
                    own = [
                        [_number(x), _number(y), round(t, 2)] for x, y, t in [*points, *line.newest]
                    ]
                    what = {"name": name, "rank": rank, "replace": fresh, "drops": drops}
                    news.append({**what, "points": own})
                    self._points[name, rank] = line.generation, len(line.points), line.newest
        return news


class Turns:
    """Takes a long list of ranks in turns of at most so many."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._at = 0

    def take(self, ranks: Sequence[int]) -> Sequence[int]:
        if self._at >= len(ranks):
            self._at = 0
        self._at += self._most
        return ranks[self._at - self._most : self._at]


# ---------------------------------------------------------------- parts of news

#: Ranks that have lanes, at most.
_LANES = 64
_UNIT = re.compile(r"(\d) (ms|s|min|h|%)(?!\w)")  # a number, and what it should not lose


def _slot(slot: Slot) -> list[float]:
    """Its second, then the seconds of compiling, running, waiting for others and for data, and in
    blocking calls."""
    return [slot.second, *(round(part, 2) for part in slot.parts)]


#: Fields of a card that the page puts into words; the others are among its facts.
_OWN = ("rank", "phase", "since", "device", "host", "place", "detail", "line")


def _card(card: Card) -> dict[str, Any]:
    """`from`: host and process; `used`: share of the device's memory; `waits`: a share; `memory`:
    bytes."""
    sample, known = card.sample, [*facts.of_steps(card), *facts.of_card(card)]
    process = [f"{fact.label} {fact.value}" for fact in known if fact.id == "pid"]
    used = (sample.device_used or 0) / sample.device_limit if sample.device_limit else None
    return {
        **{name: getattr(card, name) for name in _OWN},
        "used": used,
        "waits": None if card.waits is None else round(card.waits, 2),
        # In whole MiB: a page of memory more or less is no news of a rank that rests.
        "memory": None if sample.memory is None else sample.memory >> 20 << 20,
        "from": " · ".join([card.host, *process] if card.host else process),
        "facts": [fact._asdict() for fact in known if fact.id != "pid"],
        "bars": [_bar(bar) for bar in card.bars],
    }


def _bar(bar: Bar) -> dict[str, Any]:
    """`part`: the share that is done, None if unknown."""
    part = facts.portion(bar) if bar.total else None
    done, *left = facts.progress(bar)[0 if part is None else 1 :]
    return {"label": bar.label, "part": part, "done": done, "left": " · ".join(left)}


def _trouble(trouble: Trouble, snapshot: Snapshot) -> dict[str, Any]:
    """`open`: show the traceback at once."""
    phases = {card.rank: card.phase for card in snapshot.cards}
    phase = "died" if phases.get(trouble.ranks[0]) == "died" else "failed"
    alone = len(snapshot.troubles) == 1
    first = "" if alone else facts.first_to_fail(trouble)
    more = f", {first}" if first else f" {facts.BECAUSE}" if trouble.follows else ""
    who = f"{wording.ranks(trouble.ranks)} {phase}{more}"
    opened = not trouble.follows and (trouble.first or alone)
    return {**vars(trouble), "who": who, "phase": phase, "open": opened}


def _hang(hang: HangReported) -> dict[str, Any]:
    return {"verdict": hang.verdict, "groups": [group(stacks) for stacks in hang.groups]}


def _about(snapshot: Snapshot) -> dict[str, Any]:
    live = snapshot.live
    return {
        "cell": snapshot.cell if live is None else facts.cells(live),
        "headline": snapshot.headline,
        "diagnosis": None if snapshot.diagnosis is None else _diagnosis(snapshot.diagnosis),
        "simulated": snapshot.simulated,
        "host": hosts_in_short(snapshot),
        "lost": snapshot.lost,
        "started": snapshot.started,
        "ended": snapshot.ended,
        # While the run is in progress the page counts the seconds itself.
        "elapsed": None if snapshot.ok is None else snapshot.elapsed,
        "ok": snapshot.ok,
        "stopping": snapshot.stopping,
        "record": snapshot.record,
        "home": str(Path.home()),
        "notices": list(snapshot.notices),
        "ranks": len(snapshot.cards),
        "free": " ".join(f"{fact.label} {fact.value}" for fact in facts.free(snapshot)),
        "unit": snapshot.unit,
        # Since when the ranks are idle, or run what they run.
        "live": live and {"since": live.since, "idle": live.is_idle},
    }


def _diagnosis(diagnosis: Diagnosis) -> dict[str, Any]:
    """`level`: "calm", "warning" or "bad"; `ranks`: those to be marked."""
    return {
        "sentence": _UNIT.sub("\\1\xa0\\2", diagnosis.sentence),
        "level": diagnosis.level,
        "ranks": list(diagnosis.ranks),
    }


def _number(value: float) -> float | str:
    """JSON in a browser has neither NaN nor infinity: they are told as JavaScript writes them."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


# ---------------------------------------------------------------- lines and answers


def lines(new: Lines) -> dict[str, Any]:
    """New output of one stream."""
    block = new.block
    return {
        "rank": new.rank,
        "stream": new.stream,
        "start": block.start,
        "skipped": block.skipped,
        "lines": block.lines,
    }


def earlier(request: dict[str, Any], block: Earlier) -> dict[str, Any]:
    """The answer to a request for earlier lines; `first`: there are none before these."""
    return {
        **{name: request[name] for name in ("request", "rank", "stream")},
        "start": block.start,
        "lines": [ansi.clean(line) for line in block.lines],
        "first": block.first,
    }


def group(stacks: StackGroup) -> dict[str, Any]:
    """Ranks with the same stack."""
    return {**vars(stacks), "who": wording.ranks(stacks.ranks)}

"""What is said of a run, in HTML and in text: numbers, spans of time, facts of a rank."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from xla_nb import ansi
from xla_nb.views.saved import style
from xla_nb.views.snapshot import Bar, Card, Phase, Series, Snapshot, Trouble, of_hosts
from xla_nb.wording import several


@dataclass(frozen=True)
class State:
    glyph: str
    word: str
    colour: str


def state(snapshot: Snapshot) -> State:
    if snapshot.ok is None:
        word = "stopping" if snapshot.stopping else "running"
        return State("●", word, style.BLUE)
    phase: Phase = "finished" if snapshot.ok else "failed"
    if not snapshot.ok and snapshot.stopping and not snapshot.troubles:
        phase = "stopped"
    return State(style.PHASES[phase].glyph, phase, style.PHASES[phase].colour)


def about(snapshot: Snapshot) -> list[str]:
    """The small print below the headline."""
    said = ["simulated TPU host"] if snapshot.simulated else []
    said += [of_hosts(snapshot)] if snapshot.hosts else []
    if snapshot.ok is None:
        said += [f"stopping: {snapshot.stopping}"] if snapshot.stopping else []
        said += [
            f"as of {_clock(snapshot.now)} (refreshed every 10 s while the notebook's kernel lives)"
        ]
    elif snapshot.started is not None:
        said += [f"started {_clock(snapshot.started)}"]
    return said


def _clock(epoch: float) -> str:
    """Local time, to the second, with the day: it may be read much later."""
    try:
        return datetime.fromtimestamp(epoch).strftime("%H:%M:%S on %Y-%m-%d")
    except (ValueError, OverflowError, OSError):
        return "an unknown time"


def span(seconds: float) -> str:
    """How long, in two units at most."""
    if not 0 <= seconds < 1e9:
        return "0 s" if seconds < 0 else "?"
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02} min"
    return f"{hours // 24} d {hours % 24:02} h"


def _memory(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit != "GiB" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def _used(used: int, limit: int | None) -> str:
    """`3.2 of 16.0 GiB`."""
    if not limit:
        return _memory(used)
    number, unit = _memory(used).split()
    return f"{number if _memory(limit).endswith(unit) else _memory(used)} of {_memory(limit)}"


def figure(number: float) -> str:
    """A figure: whole numbers with commas, others with four digits."""
    if math.isfinite(number) and number == int(number) and abs(number) < 1e9:
        return f"{int(number):,}"
    return f"{number:.4g}"


def labels(ticks: Sequence[float]) -> list[str]:
    """With as many digits as it takes to tell the ticks apart."""
    said = [figure(tick) for tick in ticks]
    for digits in range(5, 18):
        if len(set(said)) == len(ticks):
            break
        said = [f"{tick:.{digits}g}" for tick in ticks]
    return said


def name(card: Card, snapshot: Snapshot) -> str:
    """`rank 3`, or `device 3`."""
    return f"{snapshot.unit} {card.rank}"


def when(card: Card, snapshot: Snapshot) -> str:
    """How long it has been in its phase; for an ended rank, how long it took to get there."""
    if card.since is None:
        return ""
    if card.phase in style.ENDED:
        return (
            f"after {span(card.since - snapshot.started)}" if snapshot.started is not None else ""
        )
    return f"for {span(max(snapshot.now - card.since, 0.0))}"


def facts(card: Card) -> list[tuple[str, str]]:
    """What is known of a rank, name and value; what is not known is not said."""
    said = [("pid", str(card.pid))] if card.pid is not None else []
    if card.rss is not None:
        said.append(("memory", _memory(card.rss)))
    if card.device_used is not None:
        said.append(("on device", _used(card.device_used, card.device_limit)))
    if card.cpu is not None:
        said.append(("CPU", f"{card.cpu:.0%}".replace("%", " %")))
    if card.compiles:
        said.append(("compiles", f"{card.compiles:,} in {span(card.compile_seconds)}"))
    if card.steps:
        said.append(("steps", f"{card.steps:,}"))
    if card.fallbacks:
        said.append(("ran on the CPU", _most([card.fallbacks])))
    if card.clients:
        said.append(("clients", _most([card.clients])))
    return said


def _most(each: Iterable[dict[str, int]], most: int = 4) -> str:
    """`aten::nonzero 12, aten::unique 3`: the most frequent."""
    counts: dict[str, int] = {}
    for counted in each:
        for name, number in counted.items():
            counts[name] = counts.get(name, 0) + number
    named = sorted(counts.items(), key=lambda item: -item[1])
    said = [f"{cut(name, 60)} {number:,}" for name, number in named[:most]]
    return ", ".join([*said, f"{len(named) - most} more"] if named[most:] else said)


def over_all(cards: Sequence[Card]) -> list[tuple[str, str]]:
    """The same for many ranks: least and most of any of them."""
    said = []
    for name, numbers, show in (
        ("memory", [card.rss for card in cards], _memory),
        ("on device", [card.device_used for card in cards], _memory),
        ("CPU", [card.cpu for card in cards], lambda share: f"{share * 100:.0f} %"),
        ("compiles", [card.compiles or None for card in cards], figure),
        ("compile time", [card.compile_seconds or None for card in cards], span),
        ("steps", [card.steps or None for card in cards], figure),
    ):
        known = [number for number in numbers if number is not None]
        if known:
            said.append((name, _from_to(show(min(known)), show(max(known)))))
    if any(card.fallbacks for card in cards):
        said.append(("ran on the CPU", _most([card.fallbacks for card in cards])))
    if any(sum(card.clients.values()) > 1 for card in cards):  # more than the usual one
        said.append(("clients", _most([card.clients for card in cards])))
    return said


def _from_to(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


def progress(bar: Bar) -> list[str]:
    """`62 %`, `620 of 1,000`, `12.3/s`, `31 s to go`."""
    said = [f"{figure(bar.done)} done"]
    if bar.total:
        said = [f"{100 * portion(bar):.0f} %", f"{figure(bar.done)} of {figure(bar.total)}"]
    if bar.rate is not None:
        said.append(f"{bar.rate:.3g}/s" if bar.rate < 1000 else f"{bar.rate:,.0f}/s")
    if bar.eta:
        said.append(f"{f'{bar.eta:.0f} s' if 0 <= bar.eta < 59.5 else span(bar.eta)} to go")
    return said


def portion(bar: Bar) -> float:
    share = bar.done / bar.total if bar.total else 0.0
    return min(max(share, 0.0), 1.0) if math.isfinite(share) else 0.0


def by_phase(cards: Iterable[Card]) -> dict[Phase, list[Card]]:
    """Ranks by phase, the phases that want attention first."""
    found: dict[Phase, list[Card]] = {phase: [] for phase in style.PHASES}
    for card in sorted(cards, key=lambda card: card.rank):
        found[card.phase].append(card)
    return {phase: alike for phase, alike in found.items() if alike}


def what(card: Card) -> list[str]:
    """Where it is and what it does there."""
    return [text for text in (card.place, card.detail) if text]


def first(trouble: Trouble) -> str:
    """Who failed first, where that is not plain from the ranks."""
    if not trouble.first:
        return ""
    return "the first to fail" if len(trouble.ranks) == 1 else f"rank {trouble.ranks[0]} first"


def last_values(series: Series) -> dict[int, float]:
    """The last value of each rank."""
    return {rank: points[-1][1] for rank, points in sorted(series.lines.items()) if points}


def over_ranks(lasts: dict[int, float]) -> str:
    finite = [value for value in lasts.values() if math.isfinite(value)]
    if not finite:
        return f"no finite value in {several(len(lasts), 'rank')}"
    said = _from_to(figure(min(finite)), figure(max(finite)))
    more = f", {len(lasts) - len(finite)} not finite" if len(finite) < len(lasts) else ""
    middle = figure(statistics.median(finite))
    return f"{said} over {several(len(lasts), 'rank')}, median {middle}{more}"


def cut(text: str, longest: int) -> str:
    """Plain text in one line, its end left out when it is long."""
    said = ansi.plain(text[: 4 * longest]).replace("\n", " ")
    return said if len(said) <= longest and len(text) <= 4 * longest else f"{said[:longest]}…"

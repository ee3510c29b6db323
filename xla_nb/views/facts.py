"""Numbers, times and facts about ranks in words, for the panel, saved HTML and saved text.

A new figure on the cards takes one field in record/sample.py and one line in `of_cards`.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, TypeVar

from xla_nb import ansi, wording
from xla_nb.messages.events import Concluded
from xla_nb.monitor.activity import KINDS, Slot
from xla_nb.monitor.sentences import MISMATCH, Trouble
from xla_nb.monitor.snapshot import ENDED, Bar, Card, Live, Phase, Series, Snapshot
from xla_nb.monitor.stacks import alike
from xla_nb.record.sample import Sample
from xla_nb.run.group import DEFAULT
from xla_nb.views.rendering import style
from xla_nb.wording import exactly, lasting, several, size, took

_LONGEST_REASON = 120  # characters of the reason for a stop
_LONGEST_VERDICT = 900  # characters of the verdict of a hang report
_T = TypeVar("_T", float, str)


def state(snapshot: Snapshot) -> style.Look:
    """The sign for the state of the run."""
    if snapshot.ok is None:
        if snapshot.is_calm and snapshot.live is not None and snapshot.live.is_idle:
            return style.PHASES["idle"]
        colours = {"calm": style.BLUE, "warning": style.AMBER, "bad": style.RED}
        colour = colours[snapshot.diagnosis.level]
        return style.Look("●", colour)
    phase: Phase = "finished" if snapshot.ok else "failed"
    was_cut = snapshot.live is not None and snapshot.live.cut
    if (was_cut or (snapshot.stopping and not snapshot.ok)) and not snapshot.troubles:
        phase = "stopped"
    conclusion = snapshot.conclusion
    if conclusion is not None and not conclusion.calm and phase != "failed":
        return style.FOUND
    return style.PHASES[phase]


def title(snapshot: Snapshot) -> str:
    """The title of the run: the diagnosis if there is one, else the headline."""
    return snapshot.diagnosis.sentence or snapshot.headline


def verdict(snapshot: Snapshot) -> str:
    """The verdict of the hang report, unless the title has it."""
    text = snapshot.hang.verdict if snapshot.hang else ""
    return "" if text in title(snapshot) else cut(text, _LONGEST_VERDICT)


def gap(snapshot: Snapshot) -> str:
    """The separator between the title and the small print. It is a space where the time belongs to
    the title (`4 ranks finished in 1.9 s`), and a dot after an error or a diagnosis."""
    return " " if duration(snapshot)[0] in ("in {}", "for {}") else " · "


def about(snapshot: Snapshot) -> list[str]:
    """Parts of the small print beside the title: `in 1.9 s`, the cell, the machine, the time."""
    template, since = duration(snapshot)
    is_over = snapshot.ok is not None
    time = took(snapshot.elapsed) if is_over else lasting(snapshot.now - since)
    when = f"as of {clock(snapshot.now)}"
    if is_over:
        when = "" if snapshot.started is None else minute(snapshot.started)
    return list(filter(None, [template.format(time), *details(snapshot), when]))


def duration(snapshot: Snapshot) -> tuple[str, float]:
    """A template for how long it took, or has lasted since the returned time, such as `in {}`;
    empty if that is in the title or unknown."""
    live, ok = snapshot.live, snapshot.ok
    since = snapshot.started if live is None or ok is not None else live.since
    if ok is None and (since is None or (live is not None and not snapshot.is_calm)):
        return "", 0.0
    if live is not None:  # `for 12 s` continues the title
        template = "for {}" if ok is None else "alive for {}"
    elif tells_time(snapshot.conclusion, ok):
        template = ""
    else:
        template = {True: "in {}", False: "ended after {}", None: "{} so far"}[ok]
    return template, since or 0.0


def details(snapshot: Snapshot) -> list[str]:
    """Parts of the small print that do not change with the time."""
    live, reason = snapshot.live, snapshot.stopping
    has_failed = live is None and snapshot.ok is False
    parts = []
    if reason and has_failed and snapshot.troubles:  # the title shows these
        parts.append(cut(f"{reason[0].lower()}{reason[1:]}", _LONGEST_REASON))
    parts.append(snapshot.cell if live is None else cells(live))
    if live is not None and live.idle is not None and snapshot.ok is None:
        parts.append(f"ends after {exactly(live.idle)} without a cell")
    parts += ["simulated TPU host"] if snapshot.simulated else []
    parts += [_hosts(snapshot)] if len(snapshot.hosts) > snapshot.simulated else []
    if snapshot.ok is None and snapshot.stopping not in title(snapshot):
        parts.append(f"stopping: {snapshot.stopping}")
    return list(filter(None, parts))


def _hosts(snapshot: Snapshot) -> str:
    """Return the host's name, or `4 hosts, 1 lost`."""
    names = f"{len(snapshot.hosts)} hosts" if len(snapshot.hosts) > 1 else "".join(snapshot.hosts)
    return f"{names}, {len(snapshot.lost)} lost" if snapshot.lost else names


def tells_time(conclusion: Concluded | None, ok: bool | None) -> bool:
    """Whether the title includes how long the run took, because it includes a conclusion."""
    return conclusion is not None and (bool(ok) or (ok is False and conclusion.calm))


def cells(live: Live) -> str:
    """`12 cells, 2 failed or stopped`, after the group's name if that is not the default."""
    text = f"group {live.name}, " if live.name != DEFAULT else ""
    text += several(live.count, "cell") if live.count else "no cells"
    text += f", {live.running:,} running" if live.running else ""
    return f"{text}, {live.lost:,} failed or stopped" if live.lost else text


def minute(epoch: float) -> str:
    """Local time to the minute, with the date: `2026-11-21 22:39`."""
    return _local(epoch, "%Y-%m-%d %H:%M")


def time_of_day(epoch: float) -> str:
    """Local time to the second, `22:39:30`, where the date of the run is shown too."""
    return _local(epoch, "%H:%M:%S")


def clock(epoch: float) -> str:
    """Local time to the second, with the date, because it may be read much later."""
    return _local(epoch, "%H:%M:%S on %Y-%m-%d")


def _local(epoch: float, pattern: str) -> str:
    try:
        return datetime.fromtimestamp(epoch).strftime(pattern)
    except (ValueError, OverflowError, OSError):
        return "an unknown time"


def figure(number: float, digits: int = 4) -> str:
    """Format a number like `figure` in panel.js: whole numbers and thousands with commas, others
    with `digits` significant digits, very large and very small ones as `1.2e-5`."""
    if not math.isfinite(number):
        return wording.odd(number)
    size = abs(number)
    if size >= 1e9 or 0 < size < 1e-4:
        mantissa, _, power = f"{number:.{digits - 1}e}".partition("e")
        return f"{float(mantissa):.{digits}g}e{int(power)}"
    if number == int(number):
        return f"{int(number):,}"
    if size < 1000:
        return f"{number:.{digits}g}"
    return f"{number:,.{max(0, digits - len(str(int(size))))}f}"


def labels(ticks: Sequence[float]) -> list[str]:
    """Format the ticks of an axis."""
    return told_apart(ticks, figure, 4)


def told_apart(numbers: Sequence[_T], describe: Callable[[_T, int], str], digits: int) -> list[str]:
    """Format numbers with `digits` digits, or as many more as it takes to distinguish them."""
    texts = [describe(number, digits) for number in numbers]
    is_enough = digits == 17 or len(set(texts)) == len(set(numbers))
    return texts if is_enough else told_apart(numbers, describe, digits + 1)


def when(card: Card, snapshot: Snapshot) -> str:
    """How long it has been in its phase; for a rank that ended, how long after the start."""
    if card.since is None:
        return ""
    if card.phase in ENDED:
        return f"after {took(card.since - snapshot.started)}" if snapshot.started else ""
    return f"for {lasting(snapshot.now - card.since)}"


class Fact(NamedTuple):
    """A fact about a rank. Pages and tests use `id`; people read `label` and `value`."""

    id: str
    label: str
    value: str


def of_cards(cards: Sequence[Card]) -> list[Fact]:
    """Facts about several ranks: the minimum and maximum of each, or sums of counts. A single rank
    has details of its own."""
    samples = [card.sample for card in cards]
    compiled = [sample.compile_seconds for sample in samples]
    known = [
        Fact("memory", "memory", _range(size, (sample.memory for sample in samples))),
        Fact("device", "on device", _device_memory(samples)),
        Fact("compiles", "compiles", _compiles(samples)),
        # For one rank, this is part of its compiles.
        Fact("compile-time", "compile time", "" if len(cards) == 1 else _counts(took, compiled)),
        Fact("steps", "steps", _done(cards, of_loops=True)),
        Fact("steps", "syncs", _done(cards, of_loops=False)),
        Fact("fallbacks", "ran on the CPU", _top(sample.fallbacks for sample in samples)),
    ]
    return [fact for fact in known if fact.value]


def _range(format_value: Callable[[float], str], values: Iterable[float | None]) -> str:
    """The minimum and maximum of the known values; empty if there are none."""
    known = [value for value in values if value is not None]
    ends = [format_value(value) for value in (min(known), max(known))] if known else []
    return " to ".join(dict.fromkeys(ends))


def _counts(format_value: Callable[[float], str], values: Sequence[float]) -> str:
    """The minimum and maximum of counts; empty if all are 0."""
    return _range(format_value, values) if any(values) else ""


def _device_memory(samples: Sequence[Sample]) -> str:
    used = _range(size, (sample.device_used for sample in samples))
    limit = samples[0].device_limit if used and len(samples) == 1 else None
    return f"{used} of {size(limit)}" if limit else used


def _compiles(samples: Sequence[Sample]) -> str:
    counts = _counts(figure, [sample.compiles for sample in samples])
    is_alone = counts and len(samples) == 1
    return f"{counts} in {took(samples[0].compile_seconds)}" if is_alone else counts


def _done(cards: Sequence[Card], *, of_loops: bool) -> str:
    """Count of loop items, or of step markers."""
    samples = [card.sample for card in cards]
    # How a rank without any steps counts them is not known yet.
    return _counts(figure, [s.done for s in samples if s.loops_step is of_loops or not s.done])


def _top(all_counts: Iterable[dict[str, int]], most: int = 4) -> str:
    """The most frequent names with their totals: `aten::nonzero 12, aten::unique 3`."""
    totals: Counter[str] = Counter()
    for counts in all_counts:
        totals.update(counts)
    words = [f"{cut(name, 60)} {number:,}" for name, number in totals.most_common(most)]
    return ", ".join([*words, f"{len(totals) - most} more"] if len(totals) > most else words)


def free(snapshot: Snapshot) -> list[Fact]:
    """The host's free memory, if known; with several hosts, the lowest."""
    label = "least free memory on a host" if len(snapshot.hosts) > 1 else "host's free memory"
    return [Fact("free", label, size(snapshot.free))] if snapshot.free is not None else []


def of_card(card: Card) -> list[Fact]:
    """Facts about one rank besides its state, the most important first."""
    return [*of_steps(card), *of_cards([card])]


def of_steps(card: Card) -> list[Fact]:
    """How long a step takes and what share of its time the rank waits, where known. Samples count
    step markers but do not time them, so the time per marker is accurate to about 10 %."""
    step = []
    if card.step is not None and card.sample.loops_step:
        step = [Fact("step", "step", took(card.step))]
    elif card.step is not None:
        step = [Fact("step", "per sync", f"≈ {took(float(f'{card.step:.2g}'))}")]
    waits = [] if card.waits is None else [Fact("waits", "waits", f"{100 * card.waits:.0f} %")]
    return step + waits


def lane(slots: Sequence[Slot]) -> list[tuple[str, float]]:
    """How a rank spent its last seconds: pairs of activity and seconds."""
    totals = map(math.fsum, zip(*(slot.parts for slot in slots), strict=True))
    return [pair for pair in zip(KINDS, totals, strict=False) if pair[1] >= 0.005]


def whereabouts(snapshot: Snapshot) -> list[tuple[str, str]]:
    """What each rank does, or last did, if no error reports it: pairs of ranks and text, with equal
    texts merged. Empty for a run that finished."""
    reported = {rank for trouble in snapshot.troubles for rank in trouble.ranks}
    activities: dict[int, str] = {}
    for card in () if snapshot.ok else snapshot.cards:
        if card.rank not in reported and card.phase != "early":  # the title covers these
            at = f" at {card.place}" if card.place and card.phase != "finished" else ""
            activities[card.rank] = f"{card.phase}{at}{f': {card.detail}' if card.detail else ''}"
    return [(wording.ranks(ranks), text) for text, ranks in alike(activities).items()]


def bar_in_short(bar: Bar) -> str:
    """`steps: 62 % · 620 of 1,000 · 12.3/s · 31 s to go`."""
    on = f" on {bar.on}" if bar.on else ""
    done = f"at least {figure(bar.done)}" if bar.least and bar.done else figure(bar.done)
    parts = [f"{done} done{on}"]
    if bar.total:
        parts = [share(bar), f"{done} of {figure(bar.total)}{on}"]
    if bar.rate is not None:
        parts.append(f"{bar.rate:.3g}/s" if bar.rate < 1000 else f"{bar.rate:,.0f}/s")
    if bar.eta:
        parts.append(f"{lasting(bar.eta + 0.5)} to go")
    parts += [cut(bar.note, 80)] if bar.note else []
    return f"{cut(bar.label or 'progress', 80)}: {' · '.join(parts)}"


def share(bar: Bar) -> str:
    """`62 %`."""
    return f"{100 * portion(bar):.0f} %"


def portion(bar: Bar) -> float:
    """The completed share of the loop, from 0 to 1; 0 if unknown."""
    done = bar.done / bar.total if bar.total else 0.0
    return min(max(done, 0.0), 1.0) if math.isfinite(done) else 0.0


def by_phase(cards: Iterable[Card]) -> dict[Phase, list[Card]]:
    """Ranks by phase, the phases that need attention first."""
    groups: dict[Phase, list[Card]] = {phase: [] for phase in style.PHASES}
    for card in sorted(cards, key=lambda card: card.rank):
        groups[card.phase].append(card)
    return {phase: group for phase, group in groups.items() if group}


#: Describes ranks whose errors only followed another rank's.
BECAUSE = "because of it"


def first_to_fail(trouble: Trouble) -> str:
    """Which rank failed first, if it is in this group; empty for ranks that diverged together."""
    if not trouble.first or trouble.kind == MISMATCH:
        return ""
    return "the first to fail" if len(trouble.ranks) == 1 else f"rank {trouble.ranks[0]} first"


def last_values(series: Series) -> dict[int, float]:
    """The last value of each rank that reported one."""
    return {rank: points[-1][1] for rank, points in sorted(series.lines.items()) if points}


def over_ranks(lasts: dict[int, float]) -> str:
    """Minimum, maximum and median of the last values."""
    finite = [value for value in lasts.values() if math.isfinite(value)]
    if not finite:
        kinds = dict.fromkeys(map(wording.odd, lasts.values()))
        return f"{wording.listed(kinds, 'or')} in {several(len(lasts), 'rank')}"
    limits = _range(figure, finite)
    suffix = f"; {len(lasts) - len(finite)} not finite" if len(finite) < len(lasts) else ""
    median = figure(statistics.median(finite))
    return f"{limits} over {several(len(finite), 'rank')}, median {median}{suffix}"


def cut(text: str, longest: int) -> str:
    """Plain text on one line, cut to `longest` characters and `…`."""
    line = ansi.plain(text[: 4 * longest]).replace("\n", " ")
    return line if len(line) <= longest and len(text) <= 4 * longest else f"{line[:longest]}…"


def short_path(path: str) -> str:
    """Shorten a path, still valid in a shell: relative to the notebook's folder, or with `~`. A
    very long path loses its middle, because its end is what sets it apart."""
    for folder, short in ((_folder(), "."), (str(Path.home()), "~")):
        if len(folder) > 1 and path.startswith(f"{folder}/"):
            path = f"{short}{path[len(folder) :]}"
            break
    return wording.without_middle(path, 400)


def _folder() -> str:
    try:
        return str(Path.cwd())
    except OSError:  # it has been removed
        return ""

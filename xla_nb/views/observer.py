"""Follow a run for a view: read new parts of its record and make Snapshots.

Each read is bounded, no matter how much the ranks print or report.
"""

from __future__ import annotations

import itertools
import math
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

from xla_nb import ansi, wording
from xla_nb.errors import XlaNbError
from xla_nb.monitor import sentences, waits
from xla_nb.monitor.activity import LANE, missing
from xla_nb.monitor.diagnosis import Diagnoser
from xla_nb.monitor.snapshot import (
    NO_SAMPLE,
    STREAMS,
    UNDER_WAY,
    Bar,
    Card,
    Excerpt,
    Live,
    Phase,
    Series,
    Snapshot,
    Stream,
)
from xla_nb.monitor.state import ENDED, RankState, RunState
from xla_nb.record.figures import Rows
from xla_nb.record.files import Record
from xla_nb.record.sample import Loop, Sample, silence
from xla_nb.record.tail import MOST, LineBlock, SwitchLog, Tail, before, ends
from xla_nb.run.recorded import RecordedRun
from xla_nb.views import facts

#: Points kept per figure: over all ranks, and the minimum and maximum for one rank.
_POINTS, _MIN_POINTS, _MAX_POINTS = 8000, 32, 400
#: Lines of output in a snapshot: over all ranks, and the minimum for one stream.
_EXCERPT_LINES, _MIN_EXCERPT_LINES = 1200, 3
#: Lines and bytes of each stream of a rank that are read again at once.
_LAST_LINES, _LAST_BYTES = 5000, 1 << 20
_LONGEST_LAST_LINE = 200  # characters of a card's last line
_OMITTED = "Charts omit the figures of {}, whose files no longer exist."
_LONGEST_NOTE = 200  # characters of the note about a past hang: the record has the rest


@dataclass(frozen=True)
class Lines:
    """New output of one stream; rank None is the job."""

    rank: int | None
    stream: Stream
    block: LineBlock


# ---------------------------------------------------------------- figures


class Figure:
    """The points (step, value) of one figure by rank. If a rank has more than `limit`, every rank
    keeps the first of each stretch of steps, so that all have points at the same steps, and its
    newest one."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._stretch = 0.0  # a power of two; 0: all points are kept
        self._points: dict[int, list[tuple[float, float]]] = {}
        self._odd: dict[int, tuple[tuple[float, str], ...]] = {}  # as in Series

    def add(self, rank: int, step: float, value: float) -> None:
        points = self._points.setdefault(rank, [])
        kind, previous = wording.odd(value), wording.odd(points[-1][1]) if points else ""
        if kind not in ("", previous):
            self._odd[rank] = *self._odd.get(rank, ())[:1], (step, kind)
        if points and (points[-1][0] == step or self._firsts(points[-2:]) == points[-2:-1]):
            points.pop()
        points.append((step, value))
        while len(points) > self._limit:
            self._stretch = 2 * self._stretch or 2.0**-60
            for other in self._points.values():
                firsts = self._firsts(other)
                other[:] = firsts if firsts[-1] is other[-1] else [*firsts, other[-1]]

    def _firsts(self, points: list[tuple[float, float]]) -> list[tuple[float, float]]:
        stretches = [step // self._stretch if self._stretch else step for step, _ in points]
        pairs = zip(points, [None, *stretches], stretches, strict=False)
        return [point for point, before, stretch in pairs if stretch != before]

    def series(self, name: str) -> Series:
        lines = {rank: [*self._points[rank]] for rank in sorted(self._points)}
        return Series(name, lines, dict(self._odd))


# ---------------------------------------------------------------- the observer


class Observer:
    """Follows one run for one view. With `notes`, records when it sees each line."""

    def __init__(self, run: RecordedRun, *, notes: bool = False) -> None:
        self.run = run
        self._arrivals = run.arrivals if notes else None
        self.figures: dict[str, Figure] = {}
        self._tails: dict[tuple[int | None, Stream], Tail] = {}
        self._switches: dict[int | None, SwitchLog] = {}
        self._last_lines: dict[int, str] = {}
        self._labels: dict[str, None] = {}  # of bars, in the order in which they started
        self._rows = RowsOfRun(run.state, run.record)
        self._first_second = 0  # first second shown in lanes
        self._diagnoser = Diagnoser()

    def look(self) -> Snapshot:
        """Read what is new. Returns the run as it is now, with its output."""
        self.read(budget=2 * max(1, len(self.run.state.ranks)))
        self.sample()
        return self.snapshot_with_output()

    # ---------------------------------------------------------- reading

    def read(self, budget: int, focus: int | None = None) -> list[Lines]:
        """Return new output: the newest lines of each stream, about `budget` lines in total. Half
        of the budget is reserved for the rank `focus`."""
        if self._arrivals is not None:
            self._arrivals.now = time.monotonic()
        ranks = self.run.state.ranks
        share = max(1, (budget if focus is None else budget // 2) // max(1, len(ranks)))
        output = []
        for rank in (None, *ranks):
            limit = budget // 2 if rank is not None and rank == focus else share
            self._tail(rank, "out").align(self._tail(rank, "err"))
            for stream in STREAMS:
                block = self._read_block(rank, stream, limit)
                if block is not None:
                    output.append(Lines(rank, stream, block))
        return output

    def finish(self) -> None:
        """Read the rest of a run that has ended, and note lines that were held back."""
        for tail in self._tails.values():
            tail.finish()

    def read_before(self, budget: int) -> list[Lines]:
        """Return the newest lines that `read` has returned, about `budget` in total, for a page
        that has not seen them."""
        share = max(1, budget // max(1, len(self._tails)))
        output = []
        for (rank, stream), tail in self._tails.items():
            earlier = before(tail.path, tail.end, share)
            if earlier.lines:
                clean = [ansi.clean(line) for line in earlier.lines]
                skipped = max(0, tail.count - len(clean))
                output.append(Lines(rank, stream, replace(earlier, skipped=skipped, lines=clean)))
        return output

    def last_lines(self, rank: int) -> list[tuple[Stream, str]]:
        """Return the newest lines of a rank that `read` has returned, up to _LAST_LINES and
        _LAST_BYTES of each stream, in the order of writing."""
        lines = list[tuple[int, Stream, str]]()
        for stream in STREAMS:
            tail = self._tail(rank, stream)
            block = before(tail.path, tail.end, _LAST_LINES, _LAST_BYTES)
            switches = self._switches_before(rank, stream, block.ends)
            lines += [*zip(switches, itertools.repeat(stream), map(ansi.clean, block.lines))]
        return [(stream, line) for _, stream, line in sorted(lines, key=itemgetter(0))]

    def _switches_before(self, rank: int | None, stream: Stream, ends: Sequence[int]) -> list[int]:
        """The number of switches to the other stream and back before lines that end there."""
        if rank not in self._switches:
            self._switches[rank] = SwitchLog(self.run.record.of_rank(rank, "switches"))
        return self._switches[rank].before(STREAMS.index(stream), ends)

    def _read_block(self, rank: int | None, stream: Stream, limit: int) -> LineBlock | None:
        tail = self._tail(rank, stream)
        merged: LineBlock | None = None
        while (block := tail.look(limit)) is not None:
            skipped = 0 if merged is None else merged.skipped + len(merged.lines)
            merged = replace(block, skipped=skipped + block.skipped)
            if not tail.behind:
                break
        if merged is None or not (merged.lines or merged.skipped):
            return None
        clean = [ansi.clean(line) for line in merged.lines]
        if rank is not None and clean:
            self._last_lines[rank] = clean[-1]
        return replace(merged, lines=clean)

    def _tail(self, rank: int | None, stream: Stream) -> Tail:
        key = rank, stream
        if key not in self._tails:
            self._tails[key] = Tail(self.run.record.log(rank, stream), self._arrivals)
        return self._tails[key]

    def sample(self) -> None:
        """Read the newest samples and figures."""
        for rank in list(self.run.state.ranks):
            self.run.tracks.look(self.run.state.ranks[rank], self.run.sample)
        for rank, name, step, value in self._rows.new():
            if name not in self.figures:
                share = _POINTS // max(1, len(self.run.state.ranks))
                self.figures[name] = Figure(min(_MAX_POINTS, max(_MIN_POINTS, share)))
            self.figures[name].add(rank, step, value)

    # ---------------------------------------------------------- showing

    def snapshot(self) -> Snapshot:
        """The run as it is now, without output."""
        state, tracks = self.run.state, self.run.tracks
        with tracks.lock:
            last_seconds = [track.lane[-1].second for track in tracks.values() if track.lane]
            self._first_second = max(last_seconds, default=0) - LANE + 1
            cards = tuple(self.card(state.ranks[rank]) for rank in sorted(state.ranks))
            paces = {rank: track.pace for rank, track in tracks.items()}
            free = self._free_memory()
        self._labels |= dict.fromkeys(card.bars[0].label for card in cards if card.bars)
        gone = self._rows.gone
        omissions = (_OMITTED.format(wording.several(gone, "earlier cell")),) if gone else ()
        snapshot = Snapshot(
            run=self.run.name,
            cell=self.run.label,
            headline=ansi.plain(
                sentences.headline(state, {card.rank: card.phase for card in cards})
            ),
            record=str(self.run.record.path),
            now=time.time(),
            started=state.started,
            elapsed=self.run.elapsed,
            conclusion=state.conclusion,
            ok=None if state.ended is None else state.ok,
            simulated=state.simulated,
            hosts=tuple(state.hosts),
            lost={host.name: ansi.plain(host.lost) for host in state.hosts.values() if host.lost},
            stopping=state.stopping,
            hang=state.current_hang,
            notices=(*_notices(self.run), *map(ansi.plain, self._rows.damage.values()), *omissions),
            bar=_bar_of_run(cards, [*self._labels]),
            free=free,
            cards=cards,
            troubles=sentences.troubles(state),
            series=tuple(figure.series(name) for name, figure in self.figures.items()),
            live=_live(state),
            returned=sentences.returned(state),
        )
        return replace(snapshot, diagnosis=self._diagnoser.look(snapshot, paces))

    def snapshot_with_output(self) -> Snapshot:
        """The run as it is now, with the first and last lines of each stream."""
        ranks = [None, *sorted(self.run.state.ranks)]
        limit = min(MOST, max(_MIN_EXCERPT_LINES, _EXCERPT_LINES // (2 * len(ranks))))
        excerpts = (self._excerpt(rank, stream, limit) for rank in ranks for stream in STREAMS)
        printed = tuple(excerpt for excerpt in excerpts if excerpt.head or excerpt.tail)
        return replace(self.snapshot(), excerpts=printed)

    def _excerpt(self, rank: int | None, stream: Stream, limit: int) -> Excerpt:
        path = self.run.record.log(rank, stream)
        tail = self._tails.get((rank, stream))
        lines = ends(path, limit, limit, tail.count if tail and tail.count else None)
        return Excerpt(
            rank,
            stream,
            tuple(map(ansi.clean, lines.head)),
            lines.left_out,
            tuple(map(ansi.clean, lines.tail)),
            str(path),
            self.run.arrivals.times(path.name, len(lines.head), lines.left_out, len(lines.tail)),
            tuple(self._switches_before(rank, stream, lines.offsets)),
        )

    def card(self, rank: RankState) -> Card:
        track = self.run.tracks[rank.rank]
        sample = track.sample
        open_lines = [(line, tqdm(line)) for line in self._open_lines(rank.rank)]
        has_ended = rank.phase in ENDED
        is_over = self.run.state.ended is not None and self.run.state.group is None
        recent = (slot for slot in track.lane if slot.second >= self._first_second)
        lane = track.whole if is_over else tuple(recent)
        steady = sample and track.steady(sample)
        phase, since = _phase(self.run.state, rank, sample, steady)
        idle = phase == "idle" or (has_ended and sample is not None and sample.activity == "idle")
        cell = self.run.state.programs.now(rank.rank)
        if phase == "idle" or (sample and cell is not None and _predates(sample, cell.at)):
            steady = sample = sample and replace(sample, place="", operation="", missing=())
        silent = self._silence(rank, sample) if phase != "idle" else 0.0
        if sample and silent:
            phase, since = "not responding", None
            sample = steady = replace(sample, activity="running", operation="", missing=())
        detail = ansi.plain(_detail(self.run.state, rank, steady))
        detail = f"last seen {wording.lasting(silent)} ago" if silent else detail
        if steady and sample and steady.operation:
            sample = replace(sample, operation=steady.operation)
        place = rank.place if has_ended or steady is None else steady.place
        place = "" if rank.phase == "finished" else place  # Stacks may have found it somewhere
        if phase == "died" and not place and sample and sample.place:  # it did not report it
            place, detail = sample.place, f"{detail}, last seen there"
        first_failure = self.run.state.first_failure
        if phase == "finished" and first_failure is not None and rank.rank in first_failure.early:
            phase, detail = "early", "returned before a collective that other ranks called"
        return Card(
            rank=rank.rank,
            phase=phase,
            since=since,
            device=", ".join(rank.devices) or rank.device,
            host=rank.host,
            pid=rank.pid,
            place=place,
            detail=detail,
            line=self._last_line(rank.rank, [line for line, bar in open_lines if bar is None]),
            step=None if idle else track.step,
            waits=track.waits(lane),
            lane=lane,
            bars=self._bars_of(rank, sample, [bar for _, bar in open_lines if bar is not None]),
            sample=sample or NO_SAMPLE,
        )

    def _silence(self, rank: RankState, sample: Sample | None) -> float:
        """Seconds without a new sample of a rank that is running; 0 while they are few."""
        state = self.run.state
        is_running = rank.phase == "running" and state.ended is None
        cell = state.programs.now(rank.rank)
        if not is_running or sample is None or (cell is not None and _predates(sample, cell.at)):
            return 0.0
        seconds = time.monotonic() - self.run.tracks[rank.rank].arrived
        return seconds if seconds >= silence(len(state.ranks)) else 0.0

    def _bars_of(
        self, rank: RankState, sample: Sample | None, drawn: Sequence[Bar]
    ) -> tuple[Bar, ...]:
        """The bars of a rank's loops, then those `drawn` by tqdm, while the rank runs. A finished
        loop is shown until the next bar starts."""
        has_ended, is_stopping = rank.phase in ENDED, bool(self.run.state.stopping)
        tqdm_bars = [] if has_ended else [*drawn]
        loops = sample.loops if sample else ()
        bars = [bar(loop) for loop in loops if not (tqdm_bars and loop.finished)] + tqdm_bars
        if has_ended or is_stopping:
            bars = [replace(one, eta=None, least=rank.phase == "died") for one in bars]
        if is_stopping or rank.phase == "died":  # the rate is misleading after a delay or a death
            bars = [replace(one, rate=None, note="") for one in bars]
        return tuple(bars)

    def _free_memory(self) -> int | None:
        """Free memory in bytes on the host that has the least, from each host's newest sample."""
        samples = [
            (track.sample, self.run.state.ranks[rank].host)
            for rank, track in self.run.tracks.items()
            if track.sample is not None
        ]
        hosts = {host: sample.free for sample, host in sorted(samples, key=lambda pair: pair[0].at)}
        return min((free for free in hosts.values() if free is not None), default=None)

    def _last_line(self, rank: int, open_lines: list[str]) -> str:
        last = open_lines[-1] if open_lines else ansi.plain(self._last_lines.get(rank, ""))
        return wording.shortened(last, _LONGEST_LAST_LINE)

    def _open_lines(self, rank: int) -> list[str]:
        tails = [self._tails[rank, stream] for stream in STREAMS if (rank, stream) in self._tails]
        return [ansi.plain(line) for tail in tails for line in tail.open_lines]


def observe(run: RecordedRun) -> Snapshot:
    """Take a Snapshot of a recorded run as it is now, with its output."""
    return Observer(run).look()


def _phase(
    state: RunState, rank: RankState, sample: Sample | None, steady: Sample | None
) -> tuple[Phase, float | None]:
    """The phase of a rank, and its start. A live rank's sample may be older than its cell, and an
    idle rank's sample may be newer than the end of its part of the cell."""
    if rank.phase == "starting":
        return "starting", state.started
    if rank.phase in ENDED:
        return rank.phase, rank.ended
    cell = state.programs.now(rank.rank)
    if state.group is not None and cell is None:
        idle = sample.since if sample is not None and sample.activity == "idle" else None
        return "idle", state.programs.rested(rank.rank, idle) or rank.started
    if cell is not None and (sample is None or _predates(sample, cell.at)):
        return "running", cell.at
    if sample is None or steady is None:
        return "running", rank.started
    since = sample.since if steady.activity == sample.activity else None
    return "waiting" if steady.activity == "blocked" else steady.activity, since


def _predates(sample: Sample, began: float) -> bool:
    return sample.at < began or (sample.activity == "idle" and sample.since < began)


def _detail(state: RunState, rank: RankState, sample: Sample | None) -> str:
    if rank.phase == "died":
        return sentences.death_in_short(state, rank)
    if rank.phase != "running" or sample is None:
        return ""
    others = {number: state.ranks.get(number) for number in sample.missing}
    ended = {n: other.ended for n, other in others.items() if other and other.ended is not None}
    return waits.detail(rank.rank, replace(sample, missing=missing(sample, ended)))


def _notices(run: RecordedRun) -> Iterator[str]:
    is_over = run.state.ended is not None
    for notice in run.state.notices:
        if notice.passing and is_over:
            continue
        text = notice.text if notice.rank is None else f"rank {notice.rank}: {notice.text}"
        yield ansi.plain(text)
    hang, over = run.state.hang, run.state.hang_over
    if hang is not None and over:
        intro = f"The hang reported at {facts.time_of_day(hang.at)} is over. {over}. It was: "
        yield wording.shortened(ansi.plain(intro + hang.verdict), _LONGEST_NOTE)
    if is_over and not run.record.path.exists():
        yield "The files of this run were removed, with its output and figures."


# ---------------------------------------------------------------- live ranks


#: Cells listed in a snapshot.
CELLS = 50


def _live(state: RunState) -> Live | None:
    """Facts about live ranks; None for any other run."""
    if state.group is None:
        return None
    programs, running = state.programs, state.programs.running
    idle_since = [programs.rested(rank) or state.ranks[rank].started for rank in state.ranks]
    since = running[0].began.at if running else max(filter(None, idle_since), default=None)
    return Live(
        name=state.group.name,
        idle=state.group.idle,
        since=since,
        count=len(programs),
        running=len(running),
        lost=sum(1 for p in programs if p.ended and p.ended.outcome != "finished"),
        cut=bool(state.cut),
        cells=tuple(programs[: -CELLS - 1 : -1]),
    )


class RowsOfRun:
    """Figures that ranks reported, in a run or over the successive cells of live ranks. If a cell
    restarts the steps of a figure, its ranks' steps are shifted to continue after the last earlier
    step of any rank.

    damage  error messages for unreadable rows, by rank
    gone    number of cells whose files no longer existed when they were opened
    """

    def __init__(self, state: RunState, record: Record) -> None:
        self.damage: dict[int, str] = {}
        self.gone = 0
        self._state, self._record = state, record
        self._rows: dict[int, dict[int, Rows]] = {}  # by cell and rank; {} once read
        self._shifts: dict[tuple[int, str], float] = {}  # of steps, by cell and figure
        self._last_steps: dict[str, float] = {}  # highest step so far, by figure

    def new(self) -> Iterator[tuple[int, str, float, float]]:
        """Yield what was reported since the last call: rank, name, step and value."""
        if self._state.group is None:
            rows = self._rows.setdefault(0, {})
            for rank in self._state.ranks.keys() - rows.keys():
                rows[rank] = Rows(self._record.history(rank))
            yield from self._new_of(0)
            return
        programs = [*self._state.programs]
        for program in programs:  # rows from another host may arrive after the end
            began, is_newest = program.began, program is programs[-1]
            if began.number not in self._rows:
                record = self._record.cell(began.run)
                self.gone += not record.path.exists()
                self._rows[began.number] = {n: Rows(record.history(n)) for n in began.ranks}
            yield from self._new_of(began.number)
            if program.ended is not None and not is_newest:
                self._rows[began.number] = {}

    def _new_of(self, number: int) -> Iterator[tuple[int, str, float, float]]:
        for rank, rows in sorted(self._rows[number].items()):
            try:
                for row in rows.new():
                    for name, value in row.figures.items():
                        yield rank, name, self._shifted(number, name, row.step), value
            except XlaNbError as error:  # show the part that could be read
                self.damage[rank] = str(error)

    def _shifted(self, number: int, name: str, step: float) -> float:
        """Shift a step of a figure in a cell."""
        last = self._last_steps.get(name, -math.inf)
        shift = last + 1 - step if step <= last else 0.0
        step += self._shifts.setdefault((number, name), shift)
        self._last_steps[name] = max(last, step)
        return step


# ---------------------------------------------------------------- progress bars


_NUMBER = r"(\d+(?:\.\d+)?[kMGTP]?)"
_TQDM = re.compile(
    rf"^(?:(.*?): )?(?: *\d+%\|.*\| *{_NUMBER}/{_NUMBER}|{_NUMBER}it) \[(\d[\d:]+.*)\]"
)


def tqdm(line: str) -> Bar | None:
    """Parse a line in tqdm's default format (tqdm 4); None for other lines. A bar of unknown length
    has no total. Its times and its rate stay in tqdm's words."""
    match = _TQDM.match(line)
    if match is None:
        return None
    label, done, total, count, note = match.groups("")
    return Bar(label, _si(done or count), _si(total) if total else None, note=note)


def _si(text: str) -> float:
    """Parse `1.5k` as 1500."""
    return float(text.rstrip("kMGTP")) * 1000.0 ** (1 + "kMGTP".find(text[-1]))


def bar(loop: Loop) -> Bar:
    """The bar of an `xla_nb.progress` loop; after an early exit from the loop it has no `eta`."""
    remaining = None if loop.total is None else max(0, loop.total - loop.done)
    eta = 0.0 if remaining == 0 else None
    if remaining and loop.rate and not loop.finished:
        eta = remaining / loop.rate - min(loop.since, 1 / loop.rate)
    return Bar(loop.label, loop.done, loop.total, loop.rate, eta, number=loop.number)


def _bar_of_run(cards: Sequence[Card], labels: Sequence[str]) -> Bar | None:
    """One bar for the ranks in progress, else for those that were when the run stopped or failed.
    `on` names its ranks, which have done at least as much, unless it covers all in progress, or
    all."""
    by_state = (
        [card for card in cards if card.phase in UNDER_WAY],
        [card for card in cards if card.phase == "stopped"],
        [card for card in cards if card.phase != "finished"],
    )
    candidates = next(filter(None, by_state), list(cards))
    bars = {card.rank: card.bars[0] for card in candidates if card.bars}
    combined = together(bars.values(), labels)
    ranks = [rank for rank, bar in bars.items() if combined and bar.label == combined.label]
    in_progress = len(by_state[0]) or len(cards)
    if combined is None or len(ranks) == in_progress:
        return combined
    return replace(combined, on=wording.ranks(ranks), least=combined.least or len(ranks) > 1)


def together(bars: Iterable[Bar], labels: Sequence[str]) -> Bar | None:
    """One bar for the bars of all ranks: that of the rank furthest behind in the earliest
    unfinished loop. Loops with one label (one per epoch, say) are ordered by number, loops with
    different labels by the order of `labels`. The bar is done when its last rank is, so it has an
    `eta` only if each rank in that loop has one.

    It does not show how far apart the ranks are, because that changes all the time."""
    all_bars = list(bars)
    if not all_bars:
        return None
    first = min(_unfinished(all_bars), key=lambda bar: (bar.number, labels.index(bar.label)))
    same_loop = [bar for bar in all_bars if (bar.label, bar.number) == (first.label, first.number)]
    same_loop = _unfinished(same_loop)
    has_total = all(bar.total for bar in same_loop)
    slowest = min(same_loop, key=lambda bar: bar.done / (bar.total or 1) if has_total else bar.done)
    etas = [bar.eta for bar in same_loop if bar.eta is not None]
    return replace(slowest, eta=max(etas) if len(etas) == len(same_loop) else None)


def _unfinished(bars: list[Bar]) -> list[Bar]:
    """The unfinished bars; all bars if none is unfinished."""
    return [bar for bar in bars if bar.done < (bar.total or math.inf)] or bars

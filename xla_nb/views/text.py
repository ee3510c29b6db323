"""Show a run as lines of text: output and errors as they happen.

The view reads the record's log files, so it never keeps a rank waiting. Each line is shown whole,
prefixed with its rank, or with all ranks that write it at about the same time. Omitted lines are
counted, and are in the files.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TextIO

from xla_nb.ansi import clean
from xla_nb.messages.events import HangReported
from xla_nb.monitor import diagnosis, sentences, stacks
from xla_nb.monitor.nonfinite import FIGURES
from xla_nb.monitor.snapshot import STREAMS, Stream
from xla_nb.monitor.state import ENDED, RunState
from xla_nb.record.tail import SwitchLog, Tail
from xla_nb.run.run import Run
from xla_nb.views import facts, folding, observer, picture
from xla_nb.views.folding import Folded, Folder
from xla_nb.views.loop import View, slot
from xla_nb.views.rendering import bounds, returned
from xla_nb.wording import encodable, shortened, took

#: Lines of each stream shown as they arrive, and last lines shown at the end.
HEAD, TAIL = 1000, 20
_GROUPS = 4  # groups of ranks shown of a hang report
_READ_BYTES = 1 << 16  # bytes per read while all lines are shown
_REDRAW = 0.5  # seconds between updates of the changing line
_MIN_PAUSE, _MAX_PAUSE = 0.004, 0.05  # seconds between reads, with and without news
_HOLDING = 0.02  # seconds between reads while lines are held back
_MAX_SWITCHES = 10  # alternating pieces of a rank's stdout and stderr in one read
_END = sys.maxsize  # the end offset of an unfinished line
_NAN_DELAY = 0.3  # seconds that a figure is NaN before that is shown: other ranks may follow


class _Stream:
    """One stream of one rank, and the amount already shown."""

    def __init__(self, rank: int | None, tail: Tail) -> None:
        self.rank = rank
        self.tail = tail
        self._accounted = 0  # lines shown or counted as omitted
        self._last = deque[tuple[int, str]](maxlen=TAIL)  # those of the others

    def show(self) -> Sequence[tuple[int, str]]:
        """Return new lines, up to HEAD, each with the offset of its end. Reads a bounded part,
        because a rank may write faster than this reads, and then nothing would check for a stop."""
        return self._read_next() or ()

    def settle(self, final: bool) -> Iterator[tuple[int, str]]:
        """Yield all new lines, or the last ones if there are too many. `final`: no more will
        follow."""
        while (lines := self._read_next()) is not None:
            yield from lines
        if final:
            yield from self._bounded((_END, line) for line in self.tail.finish())
        left_out = self.tail.count - self._accounted - len(self._last)
        if left_out > 0:
            note = f"… {left_out:,} more lines in {facts.short_path(str(self.tail.path))}"
            yield self._last[0][0] if self._last else _END, note
        yield from self._last
        self._accounted = self.tail.count
        self._last.clear()

    def _read_next(self) -> list[tuple[int, str]] | None:
        # The first lines are all shown, so read only as much at once as takes a moment.
        is_head = self._accounted < HEAD
        block = self.tail.look(None, _READ_BYTES) if is_head else self.tail.look(TAIL)
        return None if block is None else self._bounded(zip(block.ends, block.lines, strict=True))

    def _bounded(self, lines: Iterable[tuple[int, str]]) -> list[tuple[int, str]]:
        """The lines that are among the first; of the others, the last ones are kept."""
        new, room = [(end, clean(line)) for end, line in lines], max(0, HEAD - self._accounted)
        self._accounted += len(new[:room])
        self._last += new[room:]
        return new[:room]


class TextView(View):
    """Writes a run to `out` and `err` (by default the notebook's streams)."""

    def __init__(self, run: Run, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._run = run
        self._out = out or sys.stdout
        # A terminal or a notebook, where `\r` rewrites the line.
        is_terminal = getattr(self._out, "isatty", lambda: False)()
        self._is_live = is_terminal or hasattr(self._out, "pub_thread")
        self._err = err or sys.stderr or self._out
        self._streams: dict[tuple[int | None, str], _Stream] = {}
        self._switches: dict[int | None, SwitchLog] = {}
        self._folder = Folder()
        self._notice_count = 0
        self._errors: dict[int, str] = {}
        self._hang: tuple[HangReported | None, str] = None, ""  # the last one told, and its end
        self._figures_sentence = ""
        self._changing_line = ""
        self._drawn = 0.0
        self._pause = _MIN_PAUSE

    def draw(self) -> float:
        """Show what is new. Returns the seconds until the next call."""
        # Show the last lines without waiting for the processes to end.
        settled = self._run.state.settled
        self._read(lambda stream: stream.settle(False) if settled else stream.show())
        now = time.monotonic()
        running = [rank.rank for rank in self._run.state.ranks.values() if rank.phase not in ENDED]
        lines = self._folder.due(running, now)
        self._show_lines(lines)
        self._show_open_lines()
        self._pause = _MIN_PAUSE if lines else min(_MAX_PAUSE, self._pause * 1.2)
        return self._pause if self._folder.is_empty else min(self._pause, _HOLDING)

    def finish(self) -> None:
        """Show the rest: unfinished lines, the last lines, and the run's result."""
        self._show_rest()
        results = returned.as_text(sentences.returned(self._run.state))
        self._write([("out", line) for line in (*results, self._summary())])

    def _show_rest(self) -> None:
        self._read(lambda stream: stream.settle(True))
        self._show_lines(self._folder.all())

    def _summary(self) -> str:
        run = self._run
        state, path = run.state, facts.short_path(str(run.record.path))
        headline = sentences.headline(state, is_told=state.first_trouble in self._errors)
        sentence = diagnosis.ended(headline, state.conclusion, ok=state.ok, elapsed=run.elapsed)
        if not facts.tells_time(state.conclusion, state.ok):
            sentence += f" · {took(run.elapsed)}"
        return f"{sentence} · files in {path}"

    def _read(self, read_stream: Callable[[_Stream], Iterable[tuple[int, str]]]) -> None:
        """Read new lines of each stream, for each rank in the order in which they were written."""
        self._run.arrivals.now = now = time.monotonic()
        for rank in [None, *sorted(self._run.state.ranks)]:
            streams = {kind: self._stream(rank, kind) for kind in STREAMS}
            streams["out"].tail.align(streams["err"].tail)
            new_lines = {kind: [*read_stream(streams[kind])] for kind in STREAMS}
            self._folder.add(rank, self._in_order(rank, new_lines), now)

    def _in_order(
        self, rank: int | None, new_lines: Mapping[Stream, list[tuple[int, str]]]
    ) -> Sequence[tuple[str, str]]:
        """Merge the lines of both streams in the order of writing. If that would take very many
        messages to the front end, stdout comes first."""
        lines = [(kind, line) for kind in STREAMS for _, line in new_lines[kind]]
        if not all(new_lines.values()):
            return lines
        if rank not in self._switches:
            self._switches[rank] = SwitchLog(self._run.record.of_rank(rank, "switches"))
        switches: list[int] = []
        for number, kind in enumerate(STREAMS):
            switches += self._switches[rank].before(number, (end for end, _ in new_lines[kind]))
        if len(set(switches)) > _MAX_SWITCHES:
            return lines
        ordered = sorted(zip(switches, lines, strict=True), key=itemgetter(0))
        return [line for _, line in ordered]

    def _stream(self, rank: int | None, kind: str) -> _Stream:
        key = rank, kind
        if key not in self._streams:
            log = self._run.record.log(rank, kind)
            self._streams[key] = _Stream(rank, Tail(log, self._run.arrivals))
        return self._streams[key]

    def _news(self, state: RunState) -> Iterator[str]:
        notices = state.notices[self._notice_count :]
        self._notice_count += len(notices)
        for notice in notices:
            yield notice.text if notice.rank is None else f"[{notice.rank}] {notice.text}"
        figures = state.conclusions.get(FIGURES)
        is_new = figures is not None and figures.sentence != self._figures_sentence
        if figures and is_new and state.ended is None and time.time() - figures.at >= _NAN_DELAY:
            self._figures_sentence = figures.sentence
            yield clean(figures.sentence) or "All reported figures are finite again."
        yield from self._news_of_hang(state)
        yield from self._news_of_errors()

    def _news_of_errors(self) -> Iterator[str]:
        alike = []
        for rank, error in self._run.errors.items():
            if rank in self._errors:
                continue
            if error.in_short in self._errors.values():
                alike.append(rank)
            else:
                yield f"[{rank}] {error.in_short}"
            self._errors[rank] = error.in_short
        if alike:
            yield f"[{folding.who(alike)}] failed with the same error"

    def _news_of_hang(self, state: RunState) -> Iterator[str]:
        hang, over = state.hang, state.hang_over
        told, self._hang = self._hang, (hang, over)
        if hang is not None and hang is not told[0]:
            yield f"Hang report: {clean(hang.verdict)}"
            groups, note = bounds.limited(hang.groups, _GROUPS, "place")
            places = stacks.text([*groups]) if groups else ""
            yield from (f"  {clean(line)}" for line in [*places.splitlines(), note] if line)
        if over and (hang, over) != told:
            yield f"The hang is over: {clean(over)}"

    def _show_lines(self, lines: Iterable[Folded]) -> None:
        """Write lines, then news about the run."""
        news = (("err", line) for line in self._news(self._run.state))
        self._write([*((line.stream, f"[{line.who}] {line.line}") for line in lines), *news])

    def _write(self, lines: Sequence[tuple[str, str]]) -> None:
        """Write lines to their streams, `out` or `err`."""
        if lines:
            self._erase()
        for kind, group in groupby(lines, itemgetter(0)):
            text = "".join(f"{line}\n" for _, line in group)
            stream = self._out if kind == "out" else self._err
            stream.write(encodable(text, stream))
            stream.flush()

    def _erase(self) -> None:
        """Erase the changing line."""
        if self._changing_line:
            self._out.write("\r" + " " * len(self._changing_line) + "\r")
            self._out.flush()  # before stderr starts another output, where this could not erase
            self._changing_line = ""

    def _show_open_lines(self) -> None:
        """Show the unfinished lines of all ranks as one changing line, if a person can see it."""
        now = time.monotonic()
        if now - self._drawn < _REDRAW or not self._is_live:
            return
        self._drawn = now
        open_lines = [
            f"[{folding.who([stream.rank])}] {clean(line)}"
            for stream in self._streams.values()
            for line in stream.tail.open_lines
        ]
        text = encodable(shortened("  ".join(open_lines), 160), self._out)
        if text != self._changing_line:
            self._out.write("\r" + text + " " * (len(self._changing_line) - len(text)))
            self._out.flush()
            self._changing_line = text


#: Seconds after an error before it is printed as a line. If the run ends earlier, the picture shows
#: the error with its traceback instead.
_ERROR_DELAY = 1.0


class CellTextView(TextView):
    """Shows a run in a notebook cell. `watched`: a person may see the cell while it runs, not only
    in its saved file."""

    def __init__(self, run: Run, *, watched: bool) -> None:
        super().__init__(run)
        self._is_live = watched
        self._failed_at: float | None = None
        self._shown_errors: list[str] = []
        self._slot = slot()

    def finish(self) -> None:
        """Show the rest: unfinished lines, the last lines, and the picture."""
        self._failed_at = None
        self._show_rest()
        self._erase()
        if self._shown_errors:
            self._slot.update({}, raw=True)
        snapshot = observer.observe(self._run)
        picture.show(picture.bundle(snapshot, told=True) | self._run.as_data())
        self._run.shown_in = picture.cell()

    def _news_of_errors(self) -> Iterator[str]:
        if self._failed_at is None and self._run.errors:
            self._failed_at = time.monotonic()
        is_due = self._failed_at is not None and time.monotonic() - self._failed_at > _ERROR_DELAY
        if is_due and (lines := list(super()._news_of_errors())):
            display = self._slot.update if self._shown_errors else self._slot.display
            self._shown_errors += lines
            display({"text/plain": "\n".join(self._shown_errors)}, raw=True)
        return iter(())

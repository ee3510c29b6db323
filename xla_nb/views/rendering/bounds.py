"""Limits on how much of a run the saved HTML and text show.

The content of a notebook file is bounded no matter what ranks print, raise or report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from xla_nb import ansi, wording
from xla_nb.monitor.sentences import Trouble
from xla_nb.monitor.snapshot import Snapshot
from xla_nb.wording import several

#: Maximum bytes of the whole HTML, of output in it (if the rest leaves room), of output in the
#: text, and of tracebacks.
LARGEST, OUTPUT, TEXT, TRACEBACKS = 380_000, 150_000, 60_000, 40_000
#: Maximum ranks with a row each, ranks named beside a chart, ranks listed if there are more, groups
#: of errors, figures, streams, hosts.
CARDS, NAMED, ROWS, GROUPS, FIGURES, STREAMS, HOSTS = 32, 8, 24, 8, 12, 512, 24
_MAX_OTHERS = 10  # different messages shown for one group of errors
_UNORDERED = "The order of lines from different ranks was not recorded."
_LONGEST = 2000  # characters shown of one line
#: Draws a line, with at most the given number of characters.
Draw = Callable[[str, int], str]
_Item = TypeVar("_Item")


def limited(items: Sequence[_Item], most: int, noun: str) -> tuple[Sequence[_Item], str]:
    """Return the first `most` items, and `… and 3 more hosts` if there are others."""
    omitted = len(items) - most
    return items[:most], f"… and {several(omitted, f'more {noun}')}" if omitted > 0 else ""


@dataclass(frozen=True)
class Shown:
    """Lines of a text: the first ones, the number omitted, the last ones."""

    head: list[str]
    left_out: int
    tail: list[str]

    def lines(self, draw_gap: Callable[[str], str] = str, place: str = "") -> list[str]:
        """All lines, with `… 12 lines left out` in place of the omitted ones, and `place` after
        it."""
        gap = f"… {several(self.left_out, 'line')} left out{place}"
        return [*self.head, *([draw_gap(gap)] if self.left_out else []), *self.tail]


def bounded(
    head: Sequence[str], room: int, draw: Draw, left_out: int = 0, tail: Sequence[str] = ()
) -> Shown:
    """Keep as many lines from the start of `head` and the end of `tail` as fit in `room` bytes."""
    if not left_out:
        lines = [*head, *tail]
        head, tail = lines[: len(lines) // 2], lines[len(lines) // 2 :]
    longest = max(80, min(_LONGEST, room // 4))
    backwards = tail[::-1]
    first = fitting(head, room // 2, longest, draw)
    last = fitting(backwards, room - sum(map(size_of, first)), longest, draw)
    if len(first) < len(head):
        first = fitting(head, room - sum(map(size_of, last)), longest, draw)
    missing = len(head) + len(tail) - len(first) - len(last)
    return Shown(first, left_out + missing, last[::-1])


def fitting(lines: Iterable[str], room: int, longest: int, draw: Draw) -> list[str]:
    """Return the first lines that fit in `room` bytes. A line that is too long is cut."""
    fitted: list[str] = []
    for line in lines:
        text = draw(line, longest)
        while not fitted and size_of(text) > room and longest > 20:  # better short than none
            longest //= 2
            text = draw(line, longest)
        room -= size_of(text)
        if room < 0:
            break
        fitted.append(text)
    return fitted


@dataclass(frozen=True)
class ShownTrouble:
    """A group of errors: its traceback, its message below the title, the messages that differ, and
    the number of further ones."""

    trouble: Trouble
    traceback: Shown
    message: Shown
    others: list[str]
    more: str


def troubles(snapshot: Snapshot, draw: Draw) -> tuple[list[ShownTrouble], str]:
    """Return the first groups of errors, each in an equal share of the room, and the rest in words.
    Errors that the headline shows in full are omitted."""
    listed = [error for error in snapshot.troubles if error.text or error.others or not error.told]
    groups, note = limited(listed, GROUPS, "error")
    room = TRACEBACKS // max(len(groups), 1)
    if note:
        ranks = wording.ranks(rank for error in listed[GROUPS:] for rank in error.ranks)
        note = f"{note}, in {ranks}"
    return [_shown_trouble(trouble, room, draw) for trouble in groups], note


def _shown_trouble(trouble: Trouble, room: int, draw: Draw) -> ShownTrouble:
    lines = trouble.text.split("\n") if trouble.text else []
    traceback = bounded(lines, room * 3 // 4, draw)
    others = fitting(trouble.others[:_MAX_OTHERS], room // 4, max(80, room // 40), draw)
    left = len(trouble.others) - len(others)
    message = bounded(_below_title(trouble.title, lines), room // 4, draw)
    return ShownTrouble(trouble, traceback, message, others, f"… and {left} more" if left else "")


def _below_title(title: str, lines: Sequence[str]) -> Sequence[str]:
    """Return the message at the end of a traceback, without its first line."""
    prefix = f"{title.partition(':')[0]}:"
    matches = [number for number, line in enumerate(lines) if line.startswith(prefix)]
    return lines[matches[-1] + 1 :] if matches else []


def size_of(text: str) -> int:
    """Bytes of a line, including its newline."""
    return 1 + (len(text) if text.isascii() else len(text.encode()))


def more(characters: int) -> str:
    return f" … {characters:,} more characters"


def plain_line(line: str, longest: int) -> str:
    text = ansi.plain(line[:longest])
    return text + more(len(line) - longest) if len(line) > longest else text


def notes_on_output(snapshot: Snapshot) -> list[str]:
    """Notes on output that is not shown, and on an unknown order of lines."""
    streams = snapshot.excerpts
    omitted = len(streams) - STREAMS
    has_several_ranks = len({excerpt.rank for excerpt in streams}) > 1
    is_order_unknown = snapshot.ok is not None and has_several_ranks and not streams[0].times
    note = f"… and the output of {several(omitted, 'more stream')}, in the record"
    return [note] * (omitted > 0) + [_UNORDERED] * is_order_unknown

"""Limits on how much of a run the saved HTML and text show.

The content of a notebook file is bounded no matter what ranks print, raise or report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from xla_nb import ansi, wording
from xla_nb.run.sentences import Trouble
from xla_nb.views import facts
from xla_nb.views.snapshot import Excerpt, Snapshot
from xla_nb.wording import several

#: Maximum bytes of the whole HTML, of output in it (if the rest leaves room), of output in the
#: text, of tracebacks, and of the tooltips of tiles.
LARGEST, OUTPUT, TEXT, TRACEBACKS, TITLES = 380_000, 150_000, 60_000, 40_000, 25_000
#: Maximum ranks with a row each, ranks named beside a chart, tiles, ranks listed if there are more,
#: groups of errors, figures, streams, hosts.
CARDS, NAMED, TILES, ROWS, GROUPS, FIGURES, STREAMS, HOSTS = 32, 8, 1024, 24, 8, 12, 512, 24
_OTHERS = 10  # different messages shown for one group of errors
_UNORDERED = "The order of lines from different ranks was not recorded."
_LONGEST = 2000  # characters shown of one line
#: Draws a line, with at most the given number of characters.
Draw = Callable[[str, int], str]
_Item = TypeVar("_Item")


def limited(items: Sequence[_Item], most: int, noun: str) -> tuple[Sequence[_Item], str]:
    """Return the first `most` items, and `… and 3 more hosts` if there are others."""
    others = len(items) - most
    return items[:most], f"… and {several(others, f'more {noun}')}" if others > 0 else ""


@dataclass(frozen=True)
class Shown:
    """Lines of a text: the first ones, the number omitted, the last ones."""

    head: list[str]
    left_out: int
    tail: list[str]

    def lines(self, gap: str) -> list[str]:
        """All lines, with `gap` in place of the omitted ones."""
        return [*self.head, *([gap] if self.left_out else []), *self.tail]


def bounded(
    head: Sequence[str], left_out: int, tail: Sequence[str], room: int, draw: Draw
) -> Shown:
    """Keep as many lines from the start of `head` and the end of `tail` as fit in `room` bytes."""
    if not left_out:
        every = [*head, *tail]
        head, tail = every[: len(every) // 2], every[len(every) // 2 :]
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
    drawn: list[str] = []
    for line in lines:
        text = draw(line, longest)
        while not drawn and size_of(text) > room and longest > 20:  # better short than none
            longest //= 2
            text = draw(line, longest)
        room -= size_of(text)
        if room < 0:
            break
        drawn.append(text)
    return drawn


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
    untold = [one for one in snapshot.troubles if one.text or one.others or not one.told]
    groups, more = limited(untold, GROUPS, "error")
    room = TRACEBACKS // max(len(groups), 1)
    if more:
        ranks = wording.ranks(rank for one in untold[GROUPS:] for rank in one.ranks)
        more = f"{more}, in {ranks}"
    return [_shown_trouble(trouble, room, draw) for trouble in groups], more


def _shown_trouble(trouble: Trouble, room: int, draw: Draw) -> ShownTrouble:
    lines = trouble.text.split("\n") if trouble.text else []
    traceback = bounded(lines, 0, (), room * 3 // 4, draw)
    others = fitting(trouble.others[:_OTHERS], room // 4, max(80, room // 40), draw)
    more = len(trouble.others) - len(others)
    told = bounded(_below_title(trouble.title, lines), 0, (), room // 4, draw)
    return ShownTrouble(trouble, traceback, told, others, f"… and {more} more" if more else "")


def _below_title(title: str, lines: Sequence[str]) -> Sequence[str]:
    """Return the message at the end of a traceback, without its first line."""
    start = f"{title.partition(':')[0]}:"
    found = [number for number, line in enumerate(lines) if line.startswith(start)]
    return lines[found[-1] + 1 :] if found else []


def excerpts(snapshot: Snapshot, room: int, draw: Draw) -> list[tuple[Excerpt, Shown]]:
    """Fit all output into `room` bytes, divided equally among the streams."""
    chosen = snapshot.excerpts[:STREAMS]
    each = room // max(len(chosen), 1)
    return [(one, bounded(one.head, one.left_out, one.tail, each, draw)) for one in chosen]


def size_of(text: str) -> int:
    """Bytes of a line, including its newline."""
    return 1 + (len(text) if text.isascii() else len(text.encode()))


def more(characters: int) -> str:
    return f" … {characters:,} more characters"


def plain_line(line: str, longest: int) -> str:
    text = ansi.plain(line[:longest])
    return text + more(len(line) - longest) if len(line) > longest else text


def gap_text(shown: Shown, excerpt: Excerpt | None = None, folder: str = "") -> str:
    """Return `… 12 lines left out`, and the file that has them, relative to the record's
    `folder`."""
    lines = f"… {several(shown.left_out, 'line')} left out"
    if excerpt is None:
        return lines
    return f"{lines}, in {facts.cut(excerpt.path.removeprefix(f'{folder}/'), 400)}"


def notes_on_output(snapshot: Snapshot) -> list[str]:
    """Notes on output that is not shown, and on an unknown order of lines."""
    printed = snapshot.excerpts
    more = len(printed) - STREAMS
    several_ranks = len({one.rank for one in printed}) > 1
    unknown = snapshot.ok is not None and several_ranks and not printed[0].times
    told = f"… and the output of {several(more, 'more stream')}, in the record"
    return [told] * (more > 0) + [_UNORDERED] * unknown

"""What of a run is shown, and how much of it.

The rule: whatever ranks print, raise or report, what stays in the notebook is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from xla_nb import ansi
from xla_nb.views import facts
from xla_nb.views.saved import style
from xla_nb.views.snapshot import Excerpt, Snapshot
from xla_nb.wording import several

#: Bytes of the whole as HTML; what output may take of them, if the rest leaves it, and in text;
#: what tracebacks and the tiles' titles may take.
LARGEST, OUTPUT, TEXT, TRACEBACKS, TITLES = 380_000, 150_000, 60_000, 40_000, 25_000
#: Ranks that get a card; those named beside a chart; tiles; rows of the table and lines of the
#: text for ranks beyond the cards; groups of errors; figures; streams.
CARDS, NAMED, TILES, ROWS, GROUPS, FIGURES, STREAMS = 16, 8, 1024, 24, 8, 12, 512
_LONGEST = 2000  # characters shown of one line
#: Makes of a line, and of how many of its characters may be shown, what is written.
_Draw = Callable[[str, int], str]


@dataclass(frozen=True)
class Shown:
    """Lines of a text: its first, how many were left out, its last."""

    head: list[str]
    left_out: int
    tail: list[str]

    @property
    def size(self) -> int:
        return sum(map(size_of, self.head)) + sum(map(size_of, self.tail))


def bounded(
    head: Sequence[str], left_out: int, tail: Sequence[str], room: int, draw: _Draw
) -> Shown:
    """As many lines of the head's beginning and the tail's end as `room` bytes take."""
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


def fitting(lines: Iterable[str], room: int, longest: int, draw: _Draw) -> list[str]:
    drawn: list[str] = []
    for line in lines:
        said = draw(line, longest)
        while not drawn and size_of(said) > room and longest > 20:  # better short than none
            longest //= 2
            said = draw(line, longest)
        room -= size_of(said)
        if room < 0:
            break
        drawn.append(said)
    return drawn


def excerpts(snapshot: Snapshot, room: int, draw: _Draw) -> list[tuple[Excerpt, Shown]]:
    """All output within `room` bytes: what the short ones do not need, the long ones get."""
    chosen = selected(snapshot)

    def show(excerpt: Excerpt, room: int) -> Shown:
        return bounded(excerpt.head, excerpt.left_out, excerpt.tail, room, draw)

    most = min(room, 4 * room // max(len(chosen), 1))
    first = [show(excerpt, most) for excerpt in chosen]
    level = _level([shown.size for shown in first], room)
    return [
        (excerpt, shown if shown.size <= level else show(excerpt, level))
        for excerpt, shown in zip(chosen, first, strict=True)
    ]


def selected(snapshot: Snapshot) -> list[Excerpt]:
    """The streams that are shown, in the order of ranks; the job's and those of ranks in trouble
    first, should there be too many."""
    urgency = {phase: number for number, phase in enumerate(style.PHASES)}
    phases = {card.rank: urgency[card.phase] for card in snapshot.cards}

    def rank(excerpt: Excerpt) -> int:
        return -1 if excerpt.rank is None else excerpt.rank

    found = [excerpt for excerpt in snapshot.excerpts if lines_of(excerpt)]
    found.sort(key=lambda excerpt: (phases.get(rank(excerpt), -1), rank(excerpt)))
    return sorted(found[:STREAMS], key=rank)


def _level(sizes: Iterable[int], room: int) -> int:
    """The bound on each that lets all of them fit: water finding its level."""
    ordered = sorted(sizes)
    for number, size in enumerate(ordered):
        if size * (len(ordered) - number) > room:
            return room // (len(ordered) - number)
        room -= size
    return max(ordered, default=0)


def size_of(text: str) -> int:
    """In bytes, with the line's end."""
    return 1 + (len(text) if text.isascii() else len(text.encode()))


def more(characters: int) -> str:
    return f" … {characters:,} more characters"


def plain_line(line: str, longest: int) -> str:
    said = ansi.plain(line[:longest])
    return said + more(len(line) - longest) if len(line) > longest else said


def gap_text(excerpt: Excerpt, shown: Shown, within: str = "") -> str:
    """`within`: the folder that the reader knows the file to be in."""
    path = facts.cut(excerpt.path.removeprefix(f"{within}/") if within else excerpt.path, 400)
    return f"… {several(shown.left_out, 'line')} left out, in {path}"


def unshown(snapshot: Snapshot) -> str:
    more = sum(1 for excerpt in snapshot.excerpts if lines_of(excerpt)) - STREAMS
    return f"… and the output of {several(more, 'more stream')}, in the record" if more > 0 else ""


def stream_name(excerpt: Excerpt) -> str:
    return " of stderr" if excerpt.stream == "err" else ""


def lines_of(excerpt: Excerpt) -> int:
    return len(excerpt.head) + excerpt.left_out + len(excerpt.tail)

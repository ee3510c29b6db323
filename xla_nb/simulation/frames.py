"""Messages that ranks exchange at a meeting, as bytes and, if they differ, as error texts."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from struct import Struct
from zlib import crc32

from xla_nb.simulation.places import name_line, show_line
from xla_nb.wording import listed, ranks

_HEAD = Struct("<IIII?")  # program; lengths of what, where and payload; whether a farewell
_MAX_LENGTH = 4000  # maximum characters of an operation that are sent and shown


@dataclass(frozen=True)
class Frame:
    """One rank's message at a meeting: its operation, or a farewell with the reason in `what`
    ("returned", "raised ValueError").

    If a rank gives up because another ended inside a collective, the payload of its farewell is
    the name of the error that its readers raise too.
    """

    program: int
    what: str
    where: str
    payload: bytearray = field(default_factory=bytearray)
    farewell: bool = False

    def pack(self) -> bytes:
        what, where = self.what.encode(), self.where.encode()
        sizes = (len(what), len(where), len(self.payload))
        head = _HEAD.pack(self.program, *sizes, self.farewell)
        return b"".join((head, what, where, self.payload))

    @staticmethod
    def unpack(message: bytes) -> tuple[Frame, int] | None:
        """The frame at the start of a message or a stream's data, and its length; None if it is
        incomplete."""
        if len(message) < _HEAD.size:
            return None
        program, *lengths, farewell = _HEAD.unpack_from(message)
        start, middle, body, end = itertools.accumulate(lengths, initial=_HEAD.size)
        if end > len(message):
            return None
        text = message[start:middle].decode(), message[middle:body].decode()
        return Frame(program, *text, bytearray(message[body:end]), farewell), end


def shorten(what: str) -> str:
    if len(what) <= _MAX_LENGTH:
        return what
    return f"{what[:_MAX_LENGTH]}… ({len(what)} characters in all, #{crc32(what.encode()):x})"


def disagreement(frames: dict[int, Frame], absent: Iterable[int]) -> str:
    start = _first_difference([frame.what for frame in frames.values() if not frame.farewell])
    groups: dict[str, list[int]] = defaultdict(list)
    for rank, frame in sorted(frames.items()):
        groups[frame.what if frame.farewell else show(frame, start)].append(rank)
    ended = [rank for rank, frame in sorted(frames.items()) if frame.farewell]
    entries = sorted(groups.items(), key=lambda e: (e[1][0] not in ended, len(e[1])))
    lines = [f"  {ranks(group)}: {text}" for text, group in entries]
    if absent:
        lines.append(f"  {ranks(absent)}: not arrived yet")
    heading = _describe_ended(ended, frames) if ended else _describe_groups([g for _, g in entries])
    return "\n".join((f"{heading[0].upper()}{heading[1:]}:", *lines))


def _describe_groups(groups: list[list[int]]) -> str:
    """`rank 1 and ranks 0, 2, 3 called different collectives`, for up to three groups."""
    subject = listed(map(ranks, groups)) if len(groups) <= 3 else f"{len(groups)} groups of ranks"
    return f"{subject} called different collectives"


def _describe_ended(ended: list[int], frames: dict[int, Frame]) -> str:
    """`rank 2 returned while ranks 0, 1, 3 were in all_reduce (Cell In[3], line 7)`; if most ranks
    have returned, and the others call one collective too many, `rank 0 waited in all_reduce
    (Cell In[3], line 7) for ranks 1–3, which had returned`."""
    reasons = {frames[rank].what for rank in ended}
    callers = [rank for rank in frames if rank not in ended]
    calls = {(frames[rank].what.partition(" ")[0], frames[rank].where) for rank in callers}
    what, where = calls.pop() if len(calls) == 1 else ("collectives", "")
    location = f" ({name_line(where)})" if where else ""
    verb = "was" if len(callers) == 1 else "were"
    if are_most(ended, callers) and reasons == {"returned"}:
        return f"{ranks(callers)} waited in {what}{location} for {ranks(ended)}, which had returned"
    event = reasons.pop() if len(reasons) == 1 else "ended"
    return f"{ranks(ended)} {event} while {ranks(callers)} {verb} in {what}{location}"


def are_most(ended: Sequence[int], callers: Sequence[int]) -> bool:
    """Whether most ranks have ended, so that the callers are the ones that differ."""
    return len(ended) > len(callers)


def show(frame: Frame, start: int = 0) -> str:
    return f"{_abridge(frame.what, start)} at {show_line(frame.where)}"


def _first_difference(texts: Sequence[str]) -> int:
    """The index at which the texts first differ."""
    columns = enumerate(zip(*texts, strict=False))
    return next((i for i, column in columns if len(set(column)) > 1), min(map(len, texts)))


def _abridge(what: str, start: int) -> str:
    """Shorten a long list of tensors to its head and the part at `start`, where two differ."""
    if len(what) <= 200:
        return what
    start = max(80, min(start - 20, len(what) - 100))
    return f"{what[:80]} … {what[start : start + 100]} …"

"""Read the instructions of programs that ran, by opcode, from a profiler trace.

XLA's profiler writes an XSpace (tsl/profiler/protobuf/xplane.proto) whose plane /host:metadata
holds the compiled HLO of every live program, keyed by program id. Protobuf's wire format is read
directly with the field numbers below, so no schema needs compiling.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

Fields = dict[int, list[int | bytes]]

# XSpace, XPlane, XLine, XEvent, XStat, HloProto, HloModuleProto, HloComputationProto, ...
_PLANES = 1
_NAME, _LINES, _EVENT_METADATA, _STAT_METADATA = 2, 3, 4, 5
_EVENTS, _EVENT_STATS, _METADATA_STATS = 4, 4, 5
_STAT_ID, _STAT_UINT, _STAT_INT, _STAT_BYTES = 1, 3, 4, 6
_MODULE, _COMPUTATIONS, _INSTRUCTIONS, _OPCODE = 1, 3, 2, 2


def opcodes(trace: bytes) -> list[Counter[str]]:
    """For each program that ran during the trace, how often each opcode occurs in it."""
    planes = [_fields(plane) for plane in _messages(_fields(trace), _PLANES)]
    ran = {program for plane in planes for program in _programs_run(plane)}
    return [
        _opcodes(hlo)
        for plane in planes
        if _text(plane, _NAME) == "/host:metadata"
        for program, hlo in _programs(plane)
        if program in ran
    ]


def _programs_run(plane: Fields) -> Iterator[int]:
    wanted = {key for key, name in _names(plane, _STAT_METADATA).items() if name == "program_id"}
    for line in _messages(plane, _LINES):
        for event in _messages(_fields(line), _EVENTS):
            for stat in map(_fields, _messages(_fields(event), _EVENT_STATS)):
                if _number(stat, _STAT_ID) in wanted:
                    yield _number(stat, _STAT_UINT) or _number(stat, _STAT_INT)


def _programs(plane: Fields) -> Iterator[tuple[int, bytes]]:
    for entry in map(_fields, _messages(plane, _EVENT_METADATA)):
        for metadata in map(_fields, _messages(entry, 2)):
            for stat in map(_fields, _messages(metadata, _METADATA_STATS)):
                for hlo in _messages(stat, _STAT_BYTES):
                    yield _number(entry, 1), hlo


def _opcodes(hlo: bytes) -> Counter[str]:
    counts: Counter[str] = Counter()
    for module in _messages(_fields(hlo), _MODULE):
        for computation in _messages(_fields(module), _COMPUTATIONS):
            for instruction in _messages(_fields(computation), _INSTRUCTIONS):
                counts[_text(_fields(instruction), _OPCODE)] += 1
    return counts


def _names(plane: Fields, table: int) -> dict[int, str]:
    """A map from ids to messages that carry a name."""
    entries = [_fields(entry) for entry in _messages(plane, table)]
    return {
        _number(entry, 1): _text(_fields(value), 2)
        for entry in entries
        for value in _messages(entry, 2)
    }


# --- the wire format ---------------------------------------------------------------------------


def _fields(message: bytes) -> Fields:
    fields: Fields = defaultdict(list)
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        value: int | bytes
        if kind == 0:
            value, at = _varint(message, at)
        else:
            if kind == 2:
                size, at = _varint(message, at)
            else:
                size = {1: 8, 5: 4}[kind]
            value, at = message[at : at + size], at + size
        fields[key >> 3].append(value)
    return fields


def _varint(message: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = message[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number, at


def _messages(fields: Fields, field: int) -> list[bytes]:
    return [value for value in fields.get(field, ()) if isinstance(value, bytes)]


def _number(fields: Fields, field: int) -> int:
    return next((value for value in fields.get(field, ()) if isinstance(value, int)), 0)


def _text(fields: Fields, field: int) -> str:
    return next(iter(_messages(fields, field)), b"").decode(errors="replace")

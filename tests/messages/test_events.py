"""Encoding and decoding of events."""

import dataclasses
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from xla_nb.messages import events

KINDS = {*events.Event.__subclasses__(), *events.OfHost.__subclasses__()} - {events.OfHost}
PLAIN = {int: 3, float: 2.5, str: "…", bool: True}


def sample(kind: Any) -> Any:
    """A value of a type, with all fields set."""
    if kind in PLAIN:
        return PLAIN[kind]
    if dataclasses.is_dataclass(kind):
        return kind(**{name: sample(of) for name, of in get_type_hints(kind).items()})
    origin, (first, *others) = get_origin(kind), get_args(kind)
    if origin is tuple:
        return sample(first), *(sample(of) for of in others if of is not ...)
    if origin is dict:
        return {sample(first): sample(*others)}
    return first if origin is Literal else sample(first)


@pytest.mark.parametrize("kind", sorted(KINDS, key=str), ids=lambda kind: kind.__name__)
def test_event_round_trips(kind):
    event = sample(kind)
    assert events.decode(events.encode(event)) == event
    optional = {n: None for n, of in get_type_hints(kind).items() if type(None) in get_args(of)}
    event = dataclasses.replace(event, **optional)
    assert events.decode(events.encode(event)) == event


def test_long_text_keeps_its_head_and_tail():
    text = "a\n" * 25_000 + "the end"
    notice = events.decode(events.encode(events.Notice(text=text)))
    assert len(notice.text) < events.TEXT_LIMIT + 100
    assert notice.text.startswith("a\na\n")
    assert notice.text.endswith("the end")
    assert "\n… 42,007 characters left out …\n" in notice.text


def test_long_line_keeps_its_head_and_tail_and_stays_one_line():
    text = f"before\n{'a' * 50_000}the end\nafter"
    notice = events.decode(events.encode(events.Notice(text=text)))
    first, line, last = notice.text.split("\n")
    assert (first, last) == ("before", "after")
    assert line.startswith("aaa")
    assert line.endswith("the end")
    assert len(line) < events.LINE_LIMIT + 100
    assert "a … 48,007 characters left out … a" in line


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"{}", b"[]", b'{"event": "Nonsense"}', b'{"event": "Notice"}', b"\xff"),
        b'{"event": "HangReported", "verdict": "v", "ranks": [], "groups": [1]}',
        b'{"event": "HangOver", "why": "w", "invented": 1}',
        b'{"event": ["HangOver"], "why": "w"}',
        b"[" * 100_000,
    ],
)
def test_other_data_is_rejected(data):
    with pytest.raises(ValueError):
        events.decode(data)


def test_invalid_unicode_is_escaped():
    got = events.decode(events.encode(events.Notice(text="bad \udcff byte")))
    assert got.text == r"bad \udcff byte"

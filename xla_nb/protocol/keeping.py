"""The way back of what a cell's module has bound: by value, but for what the notebook has."""

from __future__ import annotations

import enum
import io
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from xla_nb.protocol import parts, shared
from xla_nb.protocol.live import Live
from xla_nb.protocol.parcel import Packed
from xla_nb.protocol.pickling import LivePickler, pickled
from xla_nb.protocol.refusals import advice_on_kept
from xla_nb.wording import in_one_line

#: An object of the notebook's: its number in the parcel that the ranks got, or its name.
Token: TypeAlias = int | str

_MAKE = "to share one, make it in a cell that is not launched"
_OWN = f"the notebook has one {{}} of its own, not the ranks': {_MAKE}"
_COPIES = (
    "the notebook has copies of arrays and tensors in shared memory or mapped files: what it "
    f"writes there, neither ranks nor the file see; {_MAKE}"
)


class _KeptPickler(LivePickler):
    """For the notebook: what a launched cell's module has bound.

    `origins` are objects that the notebook has, by id: what is written is a token.
    """

    def __init__(
        self, file: io.BytesIO, keep: Callable[..., Any], live: Live, origins: Mapping[int, Token]
    ):
        super().__init__(file, keep, live, whole=False)
        self._origins = origins
        self.tokens: set[Token] = set()
        self.notes = live.notes
        self._inner: list[object] = []

    def reduce_code(self, obj: Any) -> Any:
        if isinstance(obj, enum.Enum) and id(type(obj)) in self._origins:
            kind = type(obj)  # whose members the notebook has: a second one would equal none
            named = kind.__members__.get(obj.name or "") is obj
            return (getattr, (kind, obj.name)) if named else (kind, (obj.value,))
        return super().reduce_code(obj)

    def reduce_logger(self, logger: logging.Logger) -> Any:
        return NotImplemented  # the notebook's own of that name, as it is

    def loggers(self) -> list[logging.Logger]:
        return []

    def reduce_shared(self, obj: Any) -> Any:
        reduced = shared.copied(obj)  # this process ends, and what it would share with it
        if reduced is not NotImplemented and not any(obj is one for one in self._inner):
            self._inner += shared.semaphores(obj)
            self.notes.add(_OWN.format(shared.made_by(obj)))
        return reduced

    def persistent_id(self, obj: Any) -> Any:
        token = self._origins.get(id(obj))
        if token is None:
            return super().persistent_id(obj)
        self.tokens.add(token)
        return token


def pack_kept(
    values: Mapping[str, object], made: Mapping[int, object], named: Mapping[str, object]
) -> Packed:
    """What a launched cell's module has bound, for the notebook.

    `made` are the objects that the notebook's parcel had, by their numbers, and `named` those that
    the notebook makes itself: both are referred to. The parcel is about `objects` (the numbers it
    refers to), `problems` (why names are left out, by name) and `notes` (what gets lost).
    """
    origins: dict[int, Token] = {id(one): n for n, one in made.items() if _has_identity(one)}
    origins |= {id(one): name for name, one in named.items() if _has_identity(one)}

    live = Live({}, lambda code: None, newer=_Everything())

    def packed(wanted: Mapping[str, object]) -> Packed:
        return pickled(dict(wanted), lambda file, keep: _KeptPickler(file, keep, live, origins))

    problems: dict[str, str] = {}
    try:
        whole = packed(values)
    except BaseException:
        for name, value in values.items():
            try:
                packed({name: value})
            except BaseException as fault:
                told = in_one_line(str(fault), 300).rstrip(".")
                problems[name] = f"{told}. {advice_on_kept(fault)}"
        whole = packed({name: value for name, value in values.items() if name not in problems})
    objects = sorted(token for token in whole.writer.tokens if isinstance(token, int))
    if whole.shares():
        live.notes.add(_COPIES)
    notes = sorted(live.notes)
    return replace(whole, about={"objects": objects, "problems": problems, "notes": notes})


def _has_identity(value: object) -> bool:
    """Whether it matters which of several equal objects this is."""
    return not (isinstance(value, parts.PLAIN) or parts.is_of_a_module(value))


class _Everything:
    def __contains__(self, name: object) -> bool:
        return True

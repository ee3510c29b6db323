"""Which NaN is which: `x in rows` and `table[x]` find a NaN by being the same object.

Pickle writes floats by value, so that each would be another one where it is opened.
"""

from __future__ import annotations

import importlib
import struct
import sys
from typing import TypeAlias

#: The module whose `nan` it is or else its number, and its bits.
Token: TypeAlias = tuple[str | int, bytes]

_MODULES = "math", "numpy"


class Written:
    """The NaNs of one pickle."""

    def __init__(self) -> None:
        self._places: dict[int, tuple[str | int, float]] = {}  # which keeps them alive

    def token(self, obj: float) -> Token:
        """What stands for a NaN."""
        if id(obj) not in self._places:
            named = (m for m in _MODULES if getattr(sys.modules.get(m), "nan", None) is obj)
            self._places[id(obj)] = next(named, len(self._places)), obj
        return self._places[id(obj)][0], struct.pack("<d", obj)


class Opened:
    """Those of the same pickle where it is opened."""

    def __init__(self) -> None:
        self._made: dict[Token, float] = {}

    def find(self, token: Token) -> float:
        place, bits = token
        if isinstance(place, str):
            held: float = importlib.import_module(place).nan
            return held
        return self._made.setdefault(token, struct.unpack("<d", bits)[0])

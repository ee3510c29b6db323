"""The notebook's classes and functions that a run's results name, also where it has redefined them.

A value is read with the definition of the launch where the notebook still had that one then. What a
launched cell defines is executed in the notebook only when it is used, so of that there may be a
newer one alone.
"""

from __future__ import annotations

import pickle
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

from xla_nb.errors import XlaNbError
from xla_nb.protocol import hostile
from xla_nb.protocol.likeness import differ, fingerprint
from xla_nb.protocol.parcel import Malformed, Parcel, Unopened
from xla_nb.protocol.results import DEFINITIONS, RESULT
from xla_nb.wording import in_one_line

_ABSENT = object()


class Definitions:
    """What the results of one launch need: `resolve` finds what the notebook has under a name now,
    `named` is what it had at the launch."""

    def __init__(
        self, label: str, resolve: Callable[[str], object], named: Mapping[str, object]
    ) -> None:
        self._label = label
        self._resolve = resolve
        self._named = named
        self._told: set[str] = set()

    def read(self, rank: int, parcel: Parcel) -> object:
        """A rank's result. Raises XlaNbError, and Malformed where the file is damaged."""
        used: dict[str, object] = {}

        def find(name: str) -> object:
            used[name] = self._find(rank, name)
            return used[name]

        try:
            values: Any = parcel.open(resolve=find)
        except Unopened as unopened:
            if isinstance(unopened.problem, XlaNbError):
                raise unopened.problem from None
            if isinstance(unopened.problem, pickle.UnpicklingError | EOFError):
                raise Malformed(str(unopened.problem)) from None
            self._tell_of_new(rank, used, parcel)
            kind = hostile.name_of(type(unopened.problem))
            why = in_one_line(f"{kind}: {hostile.message_of(unopened.problem)}", 300).rstrip(".")
            raise XlaNbError(
                f"Cannot read rank {rank}'s result: {why}. Return numbers, arrays or CPU tensors "
                "instead."
            ) from unopened.problem
        if RESULT not in values:
            raise Malformed("it has no result")
        self._tell_of_new(rank, used, parcel)
        return values[RESULT]

    def _tell_of_new(self, rank: int, used: Mapping[str, object], parcel: Parcel) -> None:
        for name, value in used.items():
            if self._is_another(name, value, parcel):
                self._tell(name, f"rank {rank}'s result is read with the new `{name}`")

    def _is_another(self, name: str, now: object, parcel: Parcel) -> bool:
        """Whether a result is read with another definition than that of the launch."""
        at_launch = parcel.about.get(DEFINITIONS, {}).get(name)
        told = at_launch is not None and name not in self._named
        return told and differ(at_launch, fingerprint(now))

    def _find(self, rank: int, name: str) -> object:
        now = self._now(name)
        if name in self._named:
            former = self._named[name]
            if now is former or (_is_code(now) and fingerprint(now) == fingerprint(former)):
                return now
            self._tell(name, f"rank {rank}'s result has the former `{name}`")
            return former
        if now is _ABSENT:
            raise XlaNbError(
                f"Rank {rank}'s result needs {name}, which the notebook does not define. Run the "
                "cell that defines it first."
            )
        if not _is_code(now):
            raise XlaNbError(
                f"Rank {rank}'s result needs `{name}` of {self._label}, but in the notebook "
                f"`{name}` now has type {type(now).__name__}. Run the cell that defines it again."
            )
        return now

    def _now(self, name: str) -> object:
        try:
            return self._resolve(name)
        except KeyError:
            return _ABSENT

    def _tell(self, name: str, what: str) -> None:
        if name not in self._told:
            self._told.add(name)
            print(
                f"`{name}` was redefined after {self._label} was launched; {what}.", file=sys.stderr
            )


def _is_code(value: object) -> bool:
    return isinstance(value, type | types.FunctionType)

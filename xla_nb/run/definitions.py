"""The notebook's classes and functions that a run's results name: the ones of now, and what is said
where those are others than at the launch."""

from __future__ import annotations

import pickle
import sys
import types
from collections.abc import Callable
from typing import Any

from xla_nb.errors import XlaNbError
from xla_nb.protocol import hostile
from xla_nb.protocol.likeness import differ, fingerprint
from xla_nb.protocol.parcel import Malformed, Parcel, Unopened
from xla_nb.protocol.results import DEFINITIONS, RESULT
from xla_nb.wording import in_one_line


class Definitions:
    """What the results of one launch need: `resolve` finds what the notebook has under a name."""

    def __init__(self, label: str, resolve: Callable[[str], object]) -> None:
        self._label, self._resolve = label, resolve
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
            why = self._unreadable(rank, unopened.problem, _redefined(used, parcel))
            raise XlaNbError(why) from unopened.problem
        if RESULT not in values:
            raise Malformed("it has no result")
        for name in [name for name in _redefined(used, parcel) if name not in self._told]:
            self._told.add(name)
            print(
                f"`{name}` was redefined after {self._label} was launched; rank {rank}'s result is "
                f"read with the new `{name}`.",
                file=sys.stderr,
            )
        return values[RESULT]

    def _find(self, rank: int, name: str) -> object:
        try:
            now = self._resolve(name)
        except KeyError:
            raise XlaNbError(
                f"Rank {rank}'s result needs {name}, which the notebook does not define. Run the "
                "cell that defines it first."
            ) from None
        if not isinstance(now, type | types.FunctionType):
            raise XlaNbError(
                f"Rank {rank}'s result needs `{name}` of {self._label}, but in the notebook "
                f"`{name}` now has type {type(now).__name__}. Run the cell that defines it again."
            )
        return now

    def _unreadable(self, rank: int, problem: BaseException, redefined: list[str]) -> str:
        kind = hostile.name_of(type(problem))
        why = in_one_line(f"{kind}: {hostile.message_of(problem)}", 300).rstrip(".")
        told = f"Cannot read rank {rank}'s result: {why}."
        if not redefined:
            return f"{told} Return numbers, arrays or CPU tensors instead."
        names = ", ".join(f"`{name}`" for name in redefined)
        return (
            f"{told} It needs {names} as defined when {self._label} was launched. Run that "
            "definition again, then read the result."
        )


def _redefined(used: dict[str, object], parcel: Parcel) -> list[str]:
    """The names whose definitions are others than those of the launch."""
    before = parcel.about.get(DEFINITIONS, {})
    return [n for n, now in used.items() if n in before and differ(before[n], fingerprint(now))]

"""What the module of a launched cell has bound, taken from its run when the notebook uses it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from xla_nb.program.deferred import Launched
from xla_nb.protocol.parcel import Malformed, Parcel, Unopened
from xla_nb.record import private
from xla_nb.run.run import Run
from xla_nb.wording import listed

_PATIENCE = 0.5  # seconds


class Interrupted(Exception):
    """Raised where the wait for a run's values was interrupted; says what is not there."""


class Kept:
    """The values of one run.

    `objects` are those of the notebook that the run was sent, by their numbers in its parcel, and
    `sources` the launched cells whose source it executed, by name: of both, values refer to what
    the notebook has itself. `is_open` once the values have been taken; `problems` says why some
    could not be sent, by name.
    """

    def __init__(
        self, run: Run, objects: Mapping[int, object], sources: Mapping[str, Launched]
    ) -> None:
        self._run = run
        self._objects = objects
        self._sources = sources
        self._trimmed = False
        self.is_open = False
        self.problems: Mapping[str, str] = {}

    def trim(self) -> None:
        """Let go of the objects that are not referred to, as soon as that is known."""
        if not self._trimmed and self._run.state.kept:
            with contextlib.suppress(FileNotFoundError, Malformed):  # `take` says so
                self._trim(self._parcel())

    def discard(self) -> None:
        """Delete the file, which may be large: nobody will open it, or somebody has."""
        self._run.record.module_values.unlink(missing_ok=True)

    def take(
        self,
        names: Iterable[str],
        namespace: dict[str, Any],
        made: Callable[[str, Launched], object],
    ) -> tuple[dict[str, object], str]:
        """All values that the module bound, and a sentence on those of `names` that are missing.

        Functions get `namespace` as their globals; `made` gives what a launched cell's source
        binds to a name. Waits until the run has kept the values, or has ended, and says so. Raises
        Interrupted.
        """
        where = self._run.label
        self._wait(names)
        if not self._run.state.kept:
            return {}, (
                f"{_names(names)} computed by {where}, whose run ended before the values were "
                f"kept. Run {where} again."
            )
        if self.is_open:
            return {}, self._missing(names)
        try:
            parcel = self._parcel()
        except FileNotFoundError:
            return {}, (
                f"{_names(names)} computed by {where}, and the files of that run are gone from "
                f"{self._run.record.path}. Run {where} again."
            )
        except Malformed:
            return {}, self._damaged(names)
        self._trim(parcel)

        def held(token: int | str) -> object:
            if isinstance(token, int):
                return self._objects[token]
            return made(token, self._sources[token])

        try:
            values = parcel.open(namespace, held=held)
        except Malformed:
            return {}, self._damaged(names)
        except Unopened as unopened:
            problem = unopened.problem
            return {}, (
                f"{_names(names)} computed by {where}, and cannot be opened in the notebook: "
                f"{type(problem).__name__}: {problem}. Run {where} again."
            )
        self.is_open = True
        self.problems = parcel.about["problems"]
        for note in parcel.about["notes"]:
            print(f"{where}: {note}", file=sys.stderr)
        self.discard()
        return values, self._missing(names)

    def _wait(self, names: Iterable[str]) -> None:
        """Until the run has kept the values, or has ended."""

        def ready() -> bool:
            return self._run.state.kept or self._run.done

        try:
            with self._run.changed:
                if not self._run.changed.wait_for(ready, _PATIENCE):
                    each = listed((f"`{name}`" for name in sorted(names)), most=3)
                    print(f"waiting until {self._run.label} has computed {each} …", flush=True)
                # In turns: an interrupt that another thread receives does not end a wait.
                while not self._run.changed.wait_for(ready, _PATIENCE):
                    pass
        except KeyboardInterrupt:
            raise Interrupted(
                f"{_names(names)} not computed yet by {self._run.label}, whose top level is still "
                "running."
            ) from None

    def _damaged(self, names: Iterable[str]) -> str:
        return (
            f"{_names(names)} computed by {self._run.label}, and {self._run.record.module_values} "
            f"is damaged. Run {self._run.label} again."
        )

    def _missing(self, names: Iterable[str]) -> str:
        missing = sorted(set(names) & self.problems.keys())
        if not missing:
            return ""
        return (
            f"{_names(missing)} computed by {self._run.label} and cannot be sent to the notebook: "
            f"{self.problems[missing[0]]}."
        )

    def _parcel(self) -> Parcel:
        fd = private.reading(self._run.record.module_values)
        try:
            return Parcel(fd)
        finally:
            os.close(fd)

    def _trim(self, parcel: Parcel) -> None:
        if not self._trimmed:
            self._trimmed = True
            self._objects = {n: self._objects[n] for n in parcel.about["objects"]}


def _names(names: Iterable[str]) -> str:
    each = [f"`{name}`" for name in sorted(names)]
    return f"{listed(each, 'and', most=3)} {'was' if len(each) == 1 else 'were'}"

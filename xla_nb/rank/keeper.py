"""Keep what a launched cell's module has bound, so that the notebook has what the ranks had.

A process of its own, forked from the job before the ranks, writes it to the record: no rank waits
for it, and none has changed anything yet. It then tells what the cell's top level has changed of
what the notebook has, or makes, itself.
"""

from __future__ import annotations

import contextlib
import os
import traceback
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from xla_nb.linux import die_with_parent, name_process
from xla_nb.protocol import events, keeping, parts
from xla_nb.protocol.changes import Snapshot, changed, names_of
from xla_nb.protocol.channel import Sender
from xla_nb.protocol.order import Request
from xla_nb.protocol.parcel import Parcel
from xla_nb.record import private
from xla_nb.record.files import Record, partial
from xla_nb.record.full_disk import Losses
from xla_nb.wording import listed

_OURS = ("_xla_nb", "__xla_nb")


class Keeper:
    """Keeps what the launched cell of one request binds. `parcel` is what the notebook sent, and
    remembers what it makes."""

    def __init__(self, request: Request, parcel: Parcel) -> None:
        self._request = request
        self._parcel = parcel
        self._before: dict[str, object] = {}
        self._source: Snapshot | None = None
        parcel.remember = True

    def before_cell(self, namespace: Mapping[str, object]) -> None:
        """Look at the module as it is before the launched cell's own statements."""
        self._before = dict(namespace)
        source = [namespace[name] for name in self._request.as_source if name in namespace]
        with contextlib.suppress(Exception):  # an object of a library's that cannot be looked into
            self._source = Snapshot(source, self._parcel.objects) if source else None

    def start(self, namespace: Mapping[str, Any], fresh: Parcel, sender: Sender) -> int:
        """Start the process; returns its id, to be waited for. `fresh` is what the notebook sent,
        to be opened once more."""
        pid = os.fork()
        if pid == 0:
            try:
                die_with_parent()
                name_process("xla_nb-keeper")
                self.keep(namespace)
                sender.send(events.ModuleKept())
                if names := self.changes(namespace, fresh):
                    _tell(sender, _told(self._request.label, names))
                sender.send(events.ModuleCompared())
            except OSError as problem:
                losses = Losses(Path(self._request.record), lambda text: _tell(sender, text))
                losses.note("what the cell's top level has computed", problem)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        return pid

    def keep(self, namespace: Mapping[str, Any]) -> None:
        """Write the file; it is whole or absent."""
        request, made = self._request, self._parcel.objects
        path = Record(request.record).module_values
        values = {name: namespace[name] for name in request.keeps if name in namespace}
        named = {name: namespace[name] for name in request.as_source if name in namespace}
        packed = keeping.pack_kept(values, made, named)
        scratch = partial(path)
        try:
            fd = private.writing(scratch, os.O_RDWR | os.O_TRUNC)
            try:
                packed.write(fd)
            finally:
                os.close(fd)
            scratch.rename(path)
        except OSError:
            scratch.unlink(missing_ok=True)
            raise

    def changes(self, namespace: Mapping[str, Any], fresh: Parcel) -> list[str]:
        """The names under which the notebook has, or makes, something that its cell has changed on
        the ranks. Run in a process of its own: it opens and pickles what it compares."""
        now = self._parcel.objects
        with _in_silence():
            fresh.remember = True
            fresh.open({}, apart=True)
            found = changed(fresh.objects, now, namespace)
            found += self._source.changed() if self._source else []
            came = {id(one) for one in now.values()} | set(map(id, found))
            given = {n: value for n, value in self._before.items() if id(value) in came}
            given |= {n: self._before[n] for n in self._request.as_source if n in self._before}
            given |= self._parcel.values
            given = {name: value for name, value in given.items() if not name.startswith(_OURS)}
            return sorted(names_of(found, given, now) | self._bound_anew(namespace))

    def _bound_anew(self, namespace: Mapping[str, Any]) -> set[str]:
        """The names that something else than the cell's own statements has bound anew."""
        return {
            name
            for name, value in self._before.items()
            if name not in self._request.binds
            and not (name in namespace and _is_one(value, namespace[name]))
        }


def _is_one(value: object, other: object) -> bool:
    plain = type(value) is type(other) and type(value) in parts.PLAIN
    return value is other or (plain and repr(value) == repr(other))


@contextlib.contextmanager
def _in_silence() -> Iterator[None]:
    with (
        Path(os.devnull).open("w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


def _tell(sender: Sender, text: str) -> None:
    sender.send(events.Notice(text=text))


def _told(label: str, names: list[str]) -> str:
    each = listed((f"`{name}`" for name in names), most=5)
    verb = "is" if len(names) == 1 else "are"
    return f"{label}: {each} {verb} changed on the ranks, not in the notebook"

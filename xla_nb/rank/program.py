"""A program on a rank: call it while a meter samples it, and write its result to the record.

Its exceptions propagate: the caller reports how it ended (`process.py`).
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import sys
import traceback
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from xla_nb import untrusted
from xla_nb.messages import events
from xla_nb.messages.channel import Sender
from xla_nb.messages.orders import ARGUMENTS, Request
from xla_nb.pickling import code_facts, multiprocess, parcel, refusals, results
from xla_nb.program.module_file import ModuleMap
from xla_nb.rank import asking, displays, loader, reporting
from xla_nb.rank.lock import SharedLock
from xla_nb.rank.meter import Meter
from xla_nb.record import private
from xla_nb.record.files import Losses, Record, partial
from xla_nb.record.output import flush
from xla_nb.runtimes import Prepared, RankInfo

T = TypeVar("T")
_PICKLING_SECONDS = 2.0  # seconds to pickle an error: less than processes have to exit (run/run.py)


@dataclass
class Loaded:
    """A program in this process: the notebook's request, the sender of its events, the namespace
    that it runs in, and the map of its module's lines.

    `stopping`: it is being interrupted. `bound` are the names that a live rank has bound, even to
    the same object; `own` are the names of its namespace that programs have bound.
    """

    request: Request
    sender: Sender
    namespace: dict[str, Any]
    table: ModuleMap
    stopping: bool = False
    bound: set[str] = field(default_factory=set)
    own: set[str] = field(default_factory=set)

    @functools.cached_property
    def record(self) -> Record:
        return Record(self.request.record)

    def tell(self, rank: int, text: str) -> None:
        """Send a notice of a rank."""
        self.sender.send(events.Notice(text=text, rank=rank))

    def losses(self, rank: int) -> Losses:
        return Losses(self.record.folder, functools.partial(self.tell, rank))

    def meter(self, rank: int, book: reporting.Book, gauges: Prepared, lock: SharedLock) -> Meter:
        """A meter that samples the calling rank into the program's record."""
        labels = self.table.sources
        return Meter(rank, self.record, labels, self.sender, book, gauges, lock)


@dataclass(frozen=True)
class OnRank:
    """A program on one rank of this process."""

    program: Loaded
    rank: int
    info: RankInfo
    runtime: Prepared
    lock: SharedLock

    def run(self) -> tuple[object, int]:
        """Run the program, and write its result to the record. Returns the result and its size in
        bytes; None for a result not to be shown: it was displayed, or its cell ends with `;`.

        Figures and displays are recorded, and the meter runs, meanwhile. This uses no context
        managers of contextlib: they assign the `__traceback__` of the user's exceptions."""
        program, record, rank = self.program, self.program.record, self.rank
        losses = program.losses(rank)
        book = reporting.begin(record.of_rank(rank, "history"), losses)
        book.turned = lambda **fields: program.sender.send(events.FigureTurned(rank=rank, **fields))
        displays.screens.begin(displays.Screen(record, rank, losses))
        asking.askers.begin(asking.Asker(rank, program.sender, program.request.mute))
        meter = program.meter(rank, book, self.runtime, self.lock)
        meter.begin_program()
        try:
            with meter:
                return self._returned(meter)
        finally:
            asking.askers.end()
            displays.screens.end()
            reporting.end()

    def _returned(self, meter: Meter) -> tuple[object, int]:
        if self.program.stopping:  # before this thread, one of several, had started
            raise KeyboardInterrupt
        program = self.program
        # Live ranks keep changed values.
        is_reported = self.rank == 0 and program.request.turn is None
        names = program.table.details if is_reported else ()
        changes = Changes(program.namespace, names)
        try:
            value = in_this_process(self._call)
            multiprocess.wait_for_readers()
            reporting.compute()
        except Exception:
            displays.show_what_is_left(None)
            raise
        lost = changes.lost(value)
        is_quiet = value is not None and loader.ends_quietly(program.table)
        is_drawn = displays.show_what_is_left(None if is_quiet else value)
        meter.has_returned = True
        if lost:
            in_cell = program.table.body is not None
            program.sender.send(events.Changed(names=lost, in_cell=in_cell))
        nbytes = self._write_result(value)
        os.sched_yield()  # let other ranks print before the rest is done here
        return None if is_quiet or is_drawn else value, nbytes

    def _call(self) -> object:
        try:
            return self._run()
        except SystemExit as end:
            if end.code is None or (type(end.code) in (int, bool) and end.code == 0):
                return None
            raise

    def _run(self) -> object:
        program, request = self.program, self.program.request
        if program.table.body is not None or request.turn is not None:
            program.namespace.update(
                rank=self.rank,
                world_size=self.info.world_size,
                device=self.info.device,
                lock=self.lock,
            )
        if program.table.body is not None:
            return loader.run_body(program.table, program.namespace, program.bound)
        assert request.entry is not None
        entry = program.namespace[request.entry]
        options = {"lock": self.lock} if request.takes_lock else {}
        value = entry(self.rank, *program.namespace[ARGUMENTS], **options)
        program.bound.update(request.binds)  # as a push does
        return value

    def _write_result(self, value: object) -> int:
        """Write the result to the record, whole or not at all. Returns its size in bytes: 0 for
        None of a live rank, which the event reports without a file."""
        request, rank = self.program.request, self.rank

        def notify(clause: str) -> None:
            self.program.sender.send(events.Notice(text=f"The result of rank {rank} {clause}."))

        record = self.program.record
        try:
            in_event = value is None and request.turn is not None
            nbytes = 0 if in_event else write_home(request, record.result(rank), value, notify)
        except BaseException as problem:
            if issubclass(type(problem), KeyboardInterrupt):
                raise
            fault = refusals.fault_in_words(problem)
            details = f"({refusals.described(value)}) to the notebook: {fault}"
            advice = refusals.advice_on_result(problem)
            if not request.drops or issubclass(type(problem), OSError):
                raise ResultError(f"Cannot send the result {details}. {advice}.") from None
            nbytes = write_home(request, record.result(rank), None, notify)
            text = f"Cannot send a result {details}. It was replaced by None. {advice}."
            self.program.sender.send(events.Notice(text=text))
        preview = "None" if value is None else ""
        self.program.sender.send(events.RankFinished(rank=rank, preview=preview, nbytes=nbytes))
        return nbytes


def in_this_process(call: Callable[[], T]) -> T:
    """Call `call`; a process that user code has forked inside it is not a rank, and exits here as
    it would in a script."""
    pid = os.getpid()
    try:
        return call()
    finally:
        if os.getpid() != pid:
            _exit_process(sys.exc_info()[1])


def _exit_process(error: BaseException | None) -> NoReturn:
    """Exit this process with the status for `error`, or 0 for None."""
    match error:
        case None | SystemExit(code=None):
            status = 0
        case SystemExit(code=int(status)):
            pass
        case _:
            traceback.print_exc()
            status = 1
    flush()
    os._exit(status & 0xFF)


def keep(request: Request, path: Path, error: BaseException) -> None:
    """Write the entry's exception to the record, for code that catches it. This may fail: the
    notebook gets its description anyway."""
    with contextlib.suppress(BaseException):
        untrusted.within(_PICKLING_SECONDS, lambda: write_home(request, path, error))


def write_home(
    request: Request, path: Path, value: object, notify: Callable[[str], None] = lambda clause: None
) -> int:
    """Write a value for the notebook; returns its size in bytes. Raises what pickling raises."""
    scratch = partial(path)
    try:
        fd = private.writing(scratch, os.O_RDWR | os.O_TRUNC)
        try:
            nbytes = results.pack_home(value, notify).write(fd)
        finally:
            os.close(fd)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
    scratch.rename(path)
    return nbytes


class ResultError(Exception):
    """A rank's result that cannot be pickled."""


def digest(path: Path, rank: int) -> str:
    """The digest of a rank's result in the record; if there is none, a text unique to the rank."""
    with contextlib.suppress(Exception):
        return parcel.digest(path) or f"rank {rank}"
    return f"rank {rank}"


# ---------------------------------------------------------------- changes that stay on ranks

_MOST = 10_000  # most elements compared, for all values together
_MAX_PARTS = 100  # most parts of a result that are compared with changed values
_EXPANDED = {tuple, *code_facts.CONTAINERS}


class Changes:
    """Compares containers (lists, dicts …) that a namespace has under `names` with what it has
    there later. No user code is run: other objects are compared by identity."""

    def __init__(self, namespace: Mapping[str, object], names: Iterable[str]) -> None:
        values = {name: namespace.get(name) for name in names}
        tracked = {n: value for n, value in values.items() if _is_a(value, code_facts.CONTAINERS)}
        self._namespace = namespace
        self._most = _MOST // max(1, len(tracked))
        self._before = {name: _content(value, self._most) for name, value in tracked.items()}

    def lost(self, result: object) -> tuple[str, ...]:
        """The names whose values have changed and are neither the program's result nor directly in
        it, not even as a copy."""
        now = {name: self._namespace.get(name) for name in self._before}
        contents = {name: _content(value, self._most) for name, value in now.items()}
        changed = [name for name, content in self._before.items() if contents[name] != content]
        if not changed:
            return ()
        parts = [result, *gc.get_referents(result)[:_MAX_PARTS]]
        ids, result_ids = set(map(id, now.values())), set(map(id, parts))
        others = [one for one in parts if _is_a(one, code_facts.CONTAINERS) and id(one) not in ids]
        copies = [_content(one, self._most) for one in others]
        lost = (name for name in changed if id(now[name]) not in result_ids)
        return tuple(name for name in lost if contents[name] not in copies)


def _content(value: object, most: int) -> list[object]:
    """The constants and lengths that a value consists of, and the ids of other objects. Containers
    that would exceed `most` elements contribute only their length."""
    content: list[object] = []
    todo: list[Any] = [value]
    while todo:
        item = todo.pop()
        if _is_a(item, _EXPANDED):
            content.append((type(item), len(item)))
            todo += _elements(item, most - len(content) - len(todo))
        else:
            content.append((type(item), item) if _is_a(item, code_facts.PLAIN) else id(item))
    return content


def _elements(value: Any, most: int) -> list[object]:
    """The elements of a container; none if there are more than `most`."""
    if len(value) > most:
        return []
    if isinstance(value, dict):  # an OrderedDict's own methods would hash its keys
        return [*dict.keys(value), *dict.values(value)]
    return list(value)


def _is_a(value: object, classes: Container[type]) -> bool:
    """Whether its class is in `classes`, without comparing classes of a user's metaclass."""
    cls = type(value)
    return type(cls) is type and cls in classes

"""`xla_nb.report` and `xla_nb.progress`: what the user's code says of its work.

The rule: neither ever costs a training step its asynchrony (no tensor is waited for in the
thread that trains), and outside a rank both do nothing.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

T = TypeVar("T")

#: Figures that wait for a step marker before one is read without.
_WAITING = 64


def report(*, step: float | None = None, **figures: Any) -> None:
    """Record figures of this rank, such as ``xla_nb.report(loss=loss, accuracy=0.9)``.

    Each figure is a number, or a tensor or array of one element. A tensor on an XLA device is
    read after the next `torch_xla.sync()`, in a thread of ours, so reporting on every step does
    not wait for the device. `step` places the figures on the charts'
    axis; by default they are counted from 0.

    The panel draws a chart of each figure, and `run.history` has the values. Outside a rank, in
    a process that a rank started, and after the rank's function has returned, it does nothing.
    Raises TypeError for what is no number.
    """
    for book in _open_books():
        book.add(step, figures)


def progress(iterable: Iterable[T], *, total: int | None = None, label: str = "") -> Progress[T]:
    """The same items, counted: ``for batch in xla_nb.progress(loader)``.

    The panel shows a bar with rate and time to go for each rank, and one for the run. `total` is
    the number of items, by default `len(iterable)` where it has one. Loops may be nested.
    Outside a rank it only iterates.
    """
    return Progress(iterable, total=total, label=label)


class Progress(Generic[T]):
    """An iterable that counts. `finished` once it is exhausted or given up."""

    def __init__(self, iterable: Iterable[T], *, total: int | None, label: str) -> None:
        self._iterable = iterable
        self.label = label
        self.total = _length(iterable) if total is None else total
        self.done = 0
        self.finished = False

    def __len__(self) -> int:
        if self.total is None:
            raise TypeError(f"{type(self._iterable).__name__} has no length; pass total=")
        return self.total

    def __iter__(self) -> Iterator[T]:
        self.done, self.finished = 0, False
        for book in _open_books():
            book.begin(self)
        try:
            for item in self._iterable:
                yield item
                self.done += 1
        finally:
            self.finished = True


def _length(iterable: object) -> int | None:
    if not isinstance(iterable, Sized):
        return None
    try:
        return len(iterable)
    except TypeError:  # a DataLoader over an iterable dataset has the method, but no length
        return None


# ---------------------------------------------------------------- in a rank


@dataclass
class _Row:
    """One call of `report`."""

    number: int
    at: float
    step: float | None
    figures: dict[str, Any]

    def line(self) -> bytes:
        """As JSON; NaN and infinity as Python's json writes and reads them."""
        figures = {name: _number(name, value) for name, value in self.figures.items()}
        return json.dumps([self.number, self.at, self.step, figures]).encode() + b"\n"


@dataclass
class Book:
    """What one rank reports: rows go to the file `path`, loops are looked at by the meter."""

    path: Path
    loops: list[Progress[Any]] = field(default_factory=list)
    _count: int = 0
    _unsynced: deque[_Row] = field(default_factory=deque)  # wait for a step marker
    _synced: deque[_Row] = field(default_factory=deque)  # their step was launched
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._pid = os.getpid()
        self._file: int | None = None
        self._lost = False

    @property
    def is_open(self) -> bool:
        """False in a process that the rank started: a DataLoader's worker reports nothing."""
        return os.getpid() == self._pid

    def begin(self, loop: Progress[Any]) -> None:
        """Finished loops stay to be seen until the next one begins."""
        going = (other for other in self.loops if other is not loop and not other.finished)
        self.loops = [*going, loop]

    def add(self, step: float | None, figures: dict[str, Any]) -> None:
        kept = {name: _keep(name, value) for name, value in figures.items()}
        row = _Row(self._count, time.time(), _axis(step), kept)
        self._count += 1
        if not any(_is_lazy(value) for value in kept.values()):
            self._write(row)
            return
        if not self._unsynced:
            sys.modules["torch_xla.core.xla_model"].add_step_closure(self._step)
        self._unsynced.append(row)
        if len(self._unsynced) > _WAITING:  # a program that never marks a step
            self._write(self._unsynced.popleft())

    def _step(self) -> None:
        while self._unsynced:
            self._synced.append(self._unsynced.popleft())

    def settle(self) -> None:
        """Write what has been computed; called in the meter's thread."""
        while self._synced:
            self._write(self._synced.popleft())

    def close(self) -> None:
        """Write all there is; called in the rank's thread when its function is over."""
        self._step()
        self.settle()
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def _write(self, row: _Row) -> None:
        line = row.line()
        with self._lock:
            if self._lost:
                return
            try:
                if self._file is None:
                    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                    self._file = os.open(self.path, flags, 0o600)
                os.write(self._file, line)
            except OSError as problem:  # a full disk must not end what may have run for hours
                self._lost = True
                print(f"xla_nb: figures are lost from here on: {problem}", file=sys.stderr)


#: The books of this process, set when a rank begins and taken away when it ends.
_books: dict[int, Book] = {}


def begin(path: Path) -> Book:
    """Called by a rank before the user's function."""
    _books[threading.get_ident()] = book = Book(path)
    return book


def end() -> None:
    """Called by a rank after the user's function."""
    _books.pop(threading.get_ident()).close()


def _open_books() -> list[Book]:
    """The book of the rank that calls; of a thread that the user started, the process's first."""
    mine = _books.get(threading.get_ident()) or next(iter(_books.values()), None)
    return [mine] if mine is not None and mine.is_open else []


def _keep(name: str, value: Any) -> Any:
    """A number at once; a tensor as it is, without its graph."""
    detach = getattr(value, "detach", None)
    if detach is None:
        return _number(name, value)
    if value.numel() != 1:
        raise TypeError(
            f"xla_nb.report({name}=…) takes one number, not a tensor of shape {tuple(value.shape)}"
        )
    # A copy: the tensor may be changed in place before the step is launched.
    return detach().clone() if _is_lazy(value) else _number(name, value)


def _axis(step: Any) -> float | None:
    return step if step is None or type(step) in (int, float) else _number("step", step)


def _is_lazy(value: Any) -> bool:
    device = getattr(value, "device", None)
    return getattr(device, "type", None) == "xla"


def _number(name: str, value: Any) -> float:
    try:
        # Not `item()`, which torch_xla counts as an operator that it left to the CPU.
        known = value.cpu() if _is_lazy(value) else value
        return float(known.item() if hasattr(known, "item") else known)
    except (TypeError, ValueError, OverflowError) as problem:
        raise TypeError(
            f"xla_nb.report({name}=…) takes a number, not {type(value).__name__}: {problem}"
        ) from None

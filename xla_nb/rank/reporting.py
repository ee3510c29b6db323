"""`xla_nb.report` and `xla_nb.progress`: user code reports its progress.

Neither may wait for a tensor in the training thread, which would make its steps synchronous.
Outside a rank both do nothing.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from xla_nb.rank import loading
from xla_nb.rank.loading import Waits
from xla_nb.rank.threads import OfRank
from xla_nb.record.figures import Row, encode
from xla_nb.record.files import Appender, Losses
from xla_nb.stopwatch import Stopwatch
from xla_nb.wording import odd

T = TypeVar("T")

#: Most rows that wait for a step marker; with more they are read without one.
_WAITING = 64
#: Most bytes of rows that wait for space on a full disk.
_MAX_KEPT = 1 << 20


def report(*, step: float | None = None, **figures: Any) -> None:
    """Record figures of this rank, such as ``xla_nb.report(loss=loss, accuracy=0.9)``.

    Each figure is a number, or a tensor or array of one element. A tensor on an XLA device is
    read after the next `torch_xla.sync()`, in a separate thread, so reporting at every step does
    not wait for the device: report before the sync. `step` is the position on the charts' x-axis,
    by default the number of this rank's earlier reports of these figures: a training loss and an
    evaluation loss are counted separately, a loss and an accuracy reported together share a step.

    The panel draws a chart of each figure, and `run.history` has the values. Outside a rank, in
    a process that a rank started, and after the rank's function has returned, it does nothing.
    Raises TypeError for a figure that is not a single number, or is named `rank` or `at`.
    """
    if taken := figures.keys() & {"rank", "at"}:
        name = min(taken)
        raise TypeError(f"xla_nb.report({name}=…): each row has the rank and the time as `{name}`")
    for book in _open_books():
        book.add(step, figures)


def progress(iterable: Iterable[T], *, total: float | None = None, label: str = "") -> Progress[T]:
    """Iterate with a progress bar: ``for batch in xla_nb.progress(loader)``.

    The panel shows a bar with rate and time left for each rank, and one for the run. `total` is
    the number of items, by default `len(iterable)` if it has a length; a fraction is rounded up,
    and a negative or non-finite total is ignored. Loops may be nested. Outside a rank it only
    iterates. Raises TypeError for a total that is not a number.
    """
    return Progress(iterable, total=total, label=label)


class Progress(Generic[T]):
    """An iterable that counts its items; `finished` when exhausted or abandoned."""

    def __init__(self, iterable: Iterable[T], *, total: float | None, label: str) -> None:
        self._iterable = iterable
        self.label = str(label).encode(errors="backslashreplace").decode()
        self.total = _length(iterable) if total is None else _total(total)
        self.done = 0
        self.at = 0.0  # time when the last item was done, or the first one requested
        self.finished = False
        self.number = 0  # counts the loops with its label on this rank

    def __len__(self) -> int:
        if self.total is None:
            raise TypeError(f"{type(self._iterable).__name__} has no length; pass total=")
        return self.total

    def __iter__(self) -> Iterator[T]:
        self.done, self.at, self.finished = 0, time.time(), False
        books = _open_books()
        for book in books:
            book.begin(self)
        try:
            for item in self._iterable:
                counts = [book.begun for book in books]
                yield item
                self.done, self.at = self.done + 1, time.time()
                for book, before in zip(books, counts, strict=True):
                    if book.begun == before:
                        book.count()
        finally:
            self.finished = True
            for book in books:
                book.end_loop()


def _total(value: float) -> int | None:
    """The total as a plain number, since samples carry it: not NumPy's, and not a tensor."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        kind = type(value).__name__
        raise TypeError(f"xla_nb.progress(total=…) takes a number, not {kind}") from None
    return math.ceil(number) if math.isfinite(number) and number >= 0 else None


def _length(iterable: object) -> int | None:
    if not isinstance(iterable, Sized):
        return None
    try:
        return len(iterable)
    except TypeError:  # a DataLoader over an IterableDataset has the method, but no length
        return None


# ---------------------------------------------------------------- in a rank


@dataclass
class _Streak:
    """The non-finite values of one figure since its last finite one, `last`; this is the
    `times`-th such streak. `told`: the kinds already reported to the notebook."""

    last: float | None = None
    since: float = 0.0
    length: int = 0
    times: int = 0
    kinds: tuple[str, ...] = ()
    told: tuple[str, ...] = ()

    def take(self, step: float, value: float) -> bool:
        """Take the next value; returns whether to report a change.

        Recurring streaks are reported ever more rarely, each after twice as many values as the one
        before. Otherwise a figure that is often NaN would fill the record."""
        if math.isfinite(value):
            was_reported, self.told = bool(self.told), ()
            self.last, self.kinds, self.length = value, (), 0
            return was_reported
        if not self.length:
            self.since, self.times = step, self.times + 1
        self.length += 1
        kind = odd(value)
        self.kinds += () if kind in self.kinds else (kind,)
        return self.is_news and self.length >= 2 ** min(self.times - 1, 60)

    @property
    def is_news(self) -> bool:
        return self.kinds != self.told


@dataclass
class Book:
    """The reports of one rank: rows for the file `path`, and loops for the meter's samples.

    losses: reports rows that did not fit on the disk
    loading: stopwatch that runs while the rank waits for data
    idle: stopwatch that runs while a live rank is idle
    turned: called with fields of events.FigureTurned when a figure becomes non-finite or finite
    begun: number of loops that have begun
    items: number of items done in all loops, except items in which another loop began"""

    path: str | Path
    losses: Losses
    loading: Waits = field(default_factory=Waits)
    idle: Stopwatch = field(default_factory=Stopwatch)
    turned: Callable[..., None] = lambda **_: None
    loops: list[Progress[Any]] = field(default_factory=list)
    begun: int = 0
    items: int = 0
    _begun_by_label: Counter[str] = field(default_factory=Counter)  # by their labels
    _report_count: int = 0
    _streaks: dict[str, _Streak] = field(default_factory=dict)
    _next_steps: dict[str, int] = field(default_factory=dict)  # step of each figure's next report
    #: Rows whose tensors are not read yet: they wait for a step marker, or their step is launched.
    _unsynced: deque[Row] = field(default_factory=deque)
    _synced: deque[Row] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.pid = os.getpid()
        self._file = Appender(self.path, _MAX_KEPT)

    def begin(self, loop: Progress[Any]) -> None:
        """Add a loop; finished loops are shown until the next one begins."""
        running = (other for other in self.loops if other is not loop and not other.finished)
        self.loops = [*running, loop]
        self.begun += 1
        self._begun_by_label[loop.label] += 1
        loop.number = self._begun_by_label[loop.label]

    def count(self) -> None:
        """Count an item that is done."""
        self.items += 1
        overall = over_programs.of(threading.get_ident())
        if overall is not None and overall is not self:
            overall.count()

    def add(self, step: float | None, figures: dict[str, Any]) -> None:
        values = {name: _snapshot(name, value) for name, value in figures.items()}
        if step is not None and type(step) not in (int, float):
            step = _number("step", step)
        row = Row(self._report_count, time.time(), self._position(step, values), values)
        self._report_count += 1
        if not any(_is_lazy(value) for value in values.values()):
            self._write(row)
            return
        if not self._unsynced:
            sys.modules["torch_xla.core.xla_model"].add_step_closure(self._mark_synced)
        self._unsynced.append(row)
        if len(self._unsynced) > _WAITING:  # the program never marks a step
            self.compute()
            self._mark_synced()

    def compute(self) -> None:
        """Compute tensors that wait for a step marker, in one graph: there may be no marker."""
        if lazy := self._lazy:
            sys.modules["torch_xla.core.xla_model"].unlazy(lazy)

    @property
    def _lazy(self) -> list[Any]:
        """The tensors that wait for a step marker."""
        return [v for row in self._unsynced for v in row.figures.values() if _is_lazy(v)]

    def end_loop(self) -> None:
        """Read tensors that wait for a step marker, if the last one has computed them: code after
        the loop may take long without a marker. Otherwise they stay in the next step's graph."""
        lazy = self._lazy
        if lazy and not any(
            sys.modules["torch_xla"]._XLAC._check_tensor_need_materialization(lazy)
        ):
            self.compute()
            self._mark_synced()

    def _position(self, step: float | None, names: Iterable[str]) -> float:
        """The step of a row, by default after the last of its figures, so that figures of another
        loop do not shift it."""
        next_step = max((self._next_steps.get(name, 0) for name in names), default=0)
        self._next_steps |= dict.fromkeys(names, next_step + 1)
        return next_step if step is None else step

    def _mark_synced(self) -> None:
        while self._unsynced:
            self._synced.append(self._unsynced.popleft())

    def settle(self) -> None:
        """Write the rows whose step was launched; called in the meter's thread."""
        while self._synced:
            self._write(self._synced.popleft())

    def close(self) -> None:
        """Write all rows; called in the rank's thread after its function has ended."""
        self._mark_synced()
        self.settle()
        for name, streak in self._streaks.items():
            if streak.is_news:
                self._notify(name, streak)
        self._append()
        self._file.close()

    def _write(self, row: Row) -> None:
        figures = {name: _number(name, value) for name, value in row.figures.items()}
        self._append(encode(row.number, row.at, row.step, figures))
        for name, value in figures.items():
            if (streak := self._streaks.setdefault(name, _Streak())).take(row.step, value):
                self._notify(name, streak)

    def _notify(self, name: str, streak: _Streak) -> None:
        streak.told = streak.kinds
        self.turned(name=name, kinds=streak.kinds, since=streak.since, last=streak.last)

    def _append(self, line: bytes = b"") -> None:
        try:
            self._file.add(line)
        except OSError as problem:  # a full disk must not end a run of many hours
            self.losses.note("all of its figures", problem)


#: The books of this process's ranks; of live ranks also one over all programs, which counts items.
_books: OfRank[Book] = OfRank()
over_programs: OfRank[Book] = OfRank()


def begin(path: str | Path, losses: Losses) -> Book:
    """Open the calling rank's book, before the user's function runs."""
    return _books.begin(Book(path, losses, loading.begin()))


def compute() -> None:
    """Compute tensors that the calling rank has reported, while it still runs."""
    for book in _open_books():
        book.compute()


def end() -> None:
    """Close the calling rank's book, after the user's function has ended."""
    if (book := _books.end()) is not None:
        book.close()


def _open_books() -> list[Book]:
    """The calling rank's book; in a thread started by user code, the process's first one; none in
    a process that the rank started, such as a DataLoader worker."""
    book = _books.here()
    return [book] if book is not None and book.pid == os.getpid() else []


def _snapshot(name: str, value: Any) -> Any:
    """The value as a number; for a tensor on a device, a copy that is read later."""
    detach = getattr(value, "detach", None)
    if detach is None:
        return _number(name, value)
    if value.numel() != 1:
        raise TypeError(
            f"xla_nb.report({name}=…) takes one number, not a tensor of shape {tuple(value.shape)}"
        )
    # A copy, because the tensor may be changed in place before the step is launched.
    return detach().clone() if _is_lazy(value) else _number(name, value)


def _is_lazy(value: Any) -> bool:
    device = getattr(value, "device", None)
    return getattr(device, "type", None) == "xla"


def _number(name: str, value: Any) -> float:
    try:
        # Not `item()`, which torch_xla counts as an operator that fell back to the CPU.
        host_value = value.cpu() if _is_lazy(value) else value
        return float(host_value.item() if hasattr(host_value, "item") else host_value)
    except (TypeError, ValueError, OverflowError) as problem:
        raise TypeError(
            f"xla_nb.report({name}=…) takes a number, not {type(value).__name__}: {problem}"
        ) from None

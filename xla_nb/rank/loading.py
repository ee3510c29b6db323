"""Measure how long a rank waits for data, in `next()` of torch's DataLoader and at the queue of
torch_xla's loaders; and raise errors of those loaders in the rank.

Only the rank's own thread is timed: torch_xla reads a DataLoader ahead in a separate thread. A
loader without workers loads in that `next()`, which counts as waiting too. In a program's first
wait for each kind of loader the first seconds are not counted: workers start then, and torch_xla's
loader imports JAX.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import GeneratorType, ModuleType
from typing import Any, TypeVar

from xla_nb.patching import when_imported
from xla_nb.rank.threads import OfRank
from xla_nb.stopwatch import Stopwatch

T = TypeVar("T")

#: Modules, classes and functions in which a thread waits for data.
_WAITS = (
    ("torch.utils.data.dataloader", "_BaseDataLoaderIter", "__next__"),
    ("torch_xla.distributed.parallel_loader", "ParallelLoader", "next_item"),
)


#: Seconds of the first waits that are not counted.
_UNCOUNTED = 8.0


class _Waits(Stopwatch):
    """A rank's stopwatch; `first` runs instead in the first wait for each kind of loader."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Stopwatch()
        self._known_kinds: set[object] = set()

    def begin(self, executed: Callable[[], int | None]) -> None:
        """Begin the next program, which has first waits again. `executed` returns how many graphs
        have been run, None if they are not counted."""
        self.executed = executed
        self.add(max(0.0, self.first.seconds - _UNCOUNTED))
        self.first = Stopwatch()
        self._known_kinds.clear()

    @property
    def since(self) -> float | None:
        """Start of the current wait; None if not counted, so that the rank shows what it runs."""
        return super().since or (self.first.since if self.first.seconds > _UNCOUNTED else None)

    @property
    def seconds(self) -> float:
        return super().seconds + max(0.0, self.first.seconds - _UNCOUNTED)

    @property
    def measured(self) -> float:
        """All seconds waited, counted or not."""
        return super().seconds + self.first.seconds

    def of(self, kind: object) -> Stopwatch:
        """The stopwatch for the next wait for a loader of this kind."""
        if self.first.since is not None or kind not in self._known_kinds:
            self._known_kinds.add(kind)
            return self.first
        return self


#: The waits of this process's ranks; of a live rank across all its programs.
_waits: OfRank[_Waits] = OfRank()


def begin(executed: Callable[[], int | None] = lambda: None) -> Stopwatch:
    """Time waits of the calling thread, which begins a program."""
    waits = _waits.of(threading.get_ident()) or _waits.begin(_Waits())
    waits.begin(executed)
    return waits


def end() -> None:
    """Stop timing the calling thread."""
    _waits.end()


def watch_loaders() -> None:
    """Patch the loaders of this process so that waits for them are timed."""
    for module, owner, name in _WAITS:
        when_imported(module, functools.partial(_time, owner, name))
    when_imported("torch_xla.distributed.parallel_loader", _raise_in_the_loop)


def _time(owner: str, name: str, module: ModuleType) -> None:
    cls = getattr(module, owner)
    wait: Callable[..., Any] = getattr(cls, name)

    @functools.wraps(wait)
    def timed_wait(*args: Any, **kwargs: Any) -> Any:
        waits = _waits.of(threading.get_ident())
        if waits is None or not (watch := waits.of(wait)).start():
            return wait(*args, **kwargs)
        try:
            return wait(*args, **kwargs)
        finally:
            watch.stop()

    setattr(cls, name, timed_wait)


def _raise_in_the_loop(module: ModuleType) -> None:
    """Have the loop over a torch_xla loader raise the errors of its DataLoader.

    torch_xla 2.9 reads the DataLoader in a thread that just ends on an error: the loop seems to be
    complete after the batches so far, or waits forever if there were none. The loop raises errors
    from a queue, which torch_xla uses for errors in sending batches to the device: put these there
    too."""
    cls = module.ParallelLoader
    read = cls._loader_worker

    @functools.wraps(read)
    def guarded_read(loader: Any) -> None:
        read(_LoaderProxy(loader))

    cls._loader_worker = guarded_read


class _LoaderProxy:
    """A proxy of a ParallelLoader for the thread that reads its DataLoader."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    @property
    def _cpu_loader(self) -> Iterator[Any]:
        try:
            yield from self._loader._cpu_loader
        except Exception as problem:  # whatever a user's Dataset raises
            self._loader._exception_queue.put(problem)


def timed(iterable: Iterable[T]) -> Iterator[T]:
    """Yield the same items. In a rank's thread the time for each counts as waiting for data, unless
    a graph was run meanwhile: the iterable then does more than load, like torch_xla's own loaders.
    Generators are not timed, since they may train. Nested timed loaders are not counted twice."""
    waits = _waits.of(threading.get_ident())
    if waits is None or waits.executed() is None or isinstance(iterable, GeneratorType):
        yield from iterable
        return
    iterator = iter(iterable)
    while True:
        watch = waits.of(type(iterable))
        before, measured = waits.executed(), waits.measured
        start = time.monotonic()
        try:
            item = next(iterator)
        except StopIteration:
            return
        elapsed = time.monotonic() - start  # excludes the count, which may be slow
        if waits.executed() == before:
            watch.add(elapsed + measured - waits.measured)
        yield item

"""Measure how long a rank waits for data, in `next()` of torch's DataLoader and at the queue of
torch_xla's loaders; and raise errors of those loaders in the rank.

Only the rank's own thread is timed: torch_xla reads a DataLoader ahead in a separate thread. A
loader without workers loads in that `next()`, which counts as waiting too.
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
_MOMENT = 0.001  # seconds that an item from memory never takes


class Waits(Stopwatch):
    """A rank's stopwatch. `first` runs too in the first wait of each program: workers start then,
    and torch_xla's loader imports JAX. `executed` returns how many graphs have been run, None if
    they are not counted."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Stopwatch()
        self.begin(lambda: None)

    def begin(self, executed: Callable[[], int | None]) -> None:
        """Begin the next program, which has a first wait again."""
        self.executed, self.has_waited = executed, False

    def start(self) -> bool:
        is_outermost = super().start()
        if is_outermost and not self.has_waited:
            self.first.start()
        return is_outermost

    def stop(self) -> None:
        super().stop()
        self.first.stop()
        self.has_waited = True

    def add_around(self, seconds: float, is_first: bool) -> None:
        """Add time around waits that were timed; `is_first`: around the first one. An item from
        memory, such as an epoch's number, is not the first wait."""
        self.add(seconds)
        if is_first:
            self.first.add(seconds)
        self.has_waited |= seconds >= _MOMENT


#: The waits of this process's ranks; of a live rank across all its programs.
_waits: OfRank[Waits] = OfRank()


def begin(executed: Callable[[], int | None] = lambda: None) -> Waits:
    """Time waits of the calling thread, which begins a program."""
    waits = _waits.of(threading.get_ident()) or _waits.begin(Waits())
    waits.begin(executed)
    return waits


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
        if waits is None or not waits.start():
            return wait(*args, **kwargs)
        try:
            return wait(*args, **kwargs)
        finally:
            waits.stop()

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
        before, seconds, is_first = waits.executed(), waits.seconds, not waits.has_waited
        start = time.monotonic()
        try:
            item = next(iterator)
        except StopIteration:
            return
        elapsed = time.monotonic() - start  # excludes the count, which may be slow
        if waits.executed() == before:
            waits.add_around(elapsed - (waits.seconds - seconds), is_first)
        yield item

"""How long a rank waits for data, in the `next()` of torch's DataLoader and at the queue of
torch_xla's loaders; and the errors of those loaders, which are the rank's.

Only the rank's own thread is timed: torch_xla reads a DataLoader ahead in a thread of its own. A
loader without workers loads in that `next()`, which is waiting too. Of the first wait of a
program for each kind of loader some seconds are not counted: workers start in it, and torch_xla's
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
from xla_nb.stopwatch import Stopwatch

T = TypeVar("T")

#: Modules, classes and functions in which a thread waits for data.
_WAITS = (
    ("torch.utils.data.dataloader", "_BaseDataLoaderIter", "__next__"),
    ("torch_xla.distributed.parallel_loader", "ParallelLoader", "next_item"),
)


#: Seconds of the first waits that are not counted.
_START = 8.0


class _Waits(Stopwatch):
    """A rank's; `first` runs instead in the first wait for each kind of loader."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Stopwatch()
        self._known: set[object] = set()

    def begin(self, executed: Callable[[], int | None]) -> None:
        """The next program begins, in which the first waits are again. `executed` tells how many
        graphs have been run, None where they are not counted."""
        self.executed = executed
        self.add(max(0.0, self.first.seconds - _START))
        self.first = Stopwatch()
        self._known.clear()

    @property
    def since(self) -> float | None:
        """None where it is not counted: what the first wait is in is told as elsewhere."""
        return super().since or (self.first.since if self.first.seconds > _START else None)

    @property
    def seconds(self) -> float:
        return super().seconds + max(0.0, self.first.seconds - _START)

    @property
    def measured(self) -> float:
        """All of it, counted or not."""
        return super().seconds + self.first.seconds

    def of(self, kind: object) -> Stopwatch:
        """The one that runs in the next wait for a loader of this kind."""
        if self.first.since is not None or kind not in self._known:
            self._known.add(kind)
            return self.first
        return self


#: Those of ranks, by the thread that runs them: of a live one over all its programs.
_waits: dict[int, _Waits] = {}


def begin(executed: Callable[[], int | None] = lambda: None) -> Stopwatch:
    """Time the calling thread, which begins a program."""
    waits = _waits.setdefault(threading.get_ident(), _Waits())
    waits.begin(executed)
    return waits


def end() -> None:
    """Time the calling thread no more."""
    del _waits[threading.get_ident()]


def watch_loaders() -> None:
    """Let the loaders of this process say when they are waited for."""
    for module, owner, name in _WAITS:
        when_imported(module, functools.partial(_time, owner, name))
    when_imported("torch_xla.distributed.parallel_loader", _raise_in_the_loop)


def _time(owner: str, name: str, module: ModuleType) -> None:
    kind = getattr(module, owner)
    wait: Callable[..., Any] = getattr(kind, name)

    @functools.wraps(wait)
    def timing(*args: Any, **kwargs: Any) -> Any:
        waits = _waits.get(threading.get_ident())
        if waits is None or not (watch := waits.of(wait)).start():
            return wait(*args, **kwargs)
        try:
            return wait(*args, **kwargs)
        finally:
            watch.stop()

    setattr(kind, name, timing)


def _raise_in_the_loop(module: ModuleType) -> None:
    """Let the loop over a loader of torch_xla's raise what its DataLoader raised.

    torch_xla 2.9 reads it in a thread that ends of an error alone: the loop seems to be complete
    after the batches so far, or waits for ever where there was none. It has a queue for errors
    that are met while batches are sent to the device, which the loop raises: these go there too."""
    kind = module.ParallelLoader
    read = kind._loader_worker

    @functools.wraps(read)
    def reading(loader: Any) -> None:
        read(_Reading(loader))

    kind._loader_worker = reading


class _Reading:
    """A ParallelLoader for the thread that reads its DataLoader."""

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
    """The same items. In a rank's thread the time for each is waiting for data; not if a graph was
    run meanwhile: then the iterable does more than load, as torch_xla's own loaders do, or a
    generator that may train. What is inside of it and timed on its own is not counted twice."""
    waits = _waits.get(threading.get_ident())
    if waits is None or waits.executed() is None or isinstance(iterable, GeneratorType):
        yield from iterable
        return
    iterator = iter(iterable)
    while True:
        watch = waits.of(type(iterable))
        before, measured = waits.executed(), waits.measured
        begun = time.monotonic()
        try:
            item = next(iterator)
        except StopIteration:
            return
        took = time.monotonic() - begun  # without the count, which takes longer than a number
        if waits.executed() == before:
            watch.add(took + measured - waits.measured)
        yield item

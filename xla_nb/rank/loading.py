"""Measure how long a rank waits for data, in `next()` of torch's DataLoader and at the queue of
torch_xla's loaders; and raise errors of those loaders in the rank.

Only the rank's own thread is timed: torch_xla reads a DataLoader ahead in a separate thread. A
loader without workers loads in that `next()`, which counts as waiting too.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from xla_nb.patching import when_imported
from xla_nb.rank.threads import OfRank
from xla_nb.stopwatch import Stopwatch

#: Modules, classes and functions in which a thread waits for data.
_WAITS = (
    ("torch.utils.data.dataloader", "_BaseDataLoaderIter", "__next__"),
    ("torch_xla.distributed.parallel_loader", "ParallelLoader", "next_item"),
)


class Waits(Stopwatch):
    """A rank's stopwatch. `first` runs too in the first wait of each program: workers start then,
    and torch_xla's loader imports JAX."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Stopwatch()
        self.has_waited = False  # in this program

    def start(self) -> bool:
        is_outermost = super().start()
        if is_outermost and not self.has_waited:
            self.first.start()
        return is_outermost

    def stop(self) -> None:
        super().stop()
        self.first.stop()
        self.has_waited = True


#: The waits of this process's ranks; of a live rank across all its programs.
_waits: OfRank[Waits] = OfRank()


def begin() -> Waits:
    """Time waits of the calling thread, which begins a program."""
    waits = _waits.of(threading.get_ident()) or _waits.begin(Waits())
    waits.has_waited = False
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

"""Patches of libraries in a job and its ranks: tqdm's notebook bars, torch's loading of NumPy
numbers, multiprocessing's shared-memory segments."""

from __future__ import annotations

import importlib
import threading
from multiprocessing import resource_tracker, shared_memory
from types import ModuleType
from typing import Any

from xla_nb.patching import when_imported


def install() -> None:
    """Install all patches, now or when a library is imported."""
    when_imported("tqdm.notebook", _draw_as_text)
    when_imported("torch.serialization", _allow_numpy_types)
    leave_segments_to_their_makers()


def _draw_as_text(notebook: ModuleType) -> None:
    """Use plain bars: a rank cannot show widgets, and the panel turns lines of a plain bar into its
    own bars (views/observer.py)."""
    from tqdm.std import tqdm, trange  # type: ignore[import-untyped]

    vars(notebook).update(tqdm=tqdm, tqdm_notebook=tqdm, trange=trange, tnrange=trange)


def _allow_numpy_types(serialization: ModuleType) -> None:
    """Allow NumPy types in `torch.load`: `xm.mesh_reduce` sends values through `torch.save` and
    `torch.load`, which since torch 2.6 refuses NumPy numbers and arrays unless allowed. They hold
    no code."""
    numpy: Any = importlib.import_module("numpy")
    core: Any = importlib.import_module(numpy.ndarray(0).__reduce__()[0].__module__)  # by release
    dtypes = {type(numpy.dtype(code)) for code in numpy.typecodes["All"]}
    constructors = [core._reconstruct, core.scalar, numpy.ndarray, numpy.dtype]
    vars(serialization)["add_safe_globals"]([*constructors, *dtypes])


_original_init: Any = shared_memory.SharedMemory.__init__
_thread_state = threading.local()


class _Tracker:
    """A resource tracker for `shared_memory` that tracks only segments created here."""

    def __init__(self) -> None:
        self._created: set[str] = set()

    def register(self, name: str, kind: str) -> None:
        if not _thread_state.attaching:
            self._created.add(name)
            resource_tracker.register(name, kind)

    def unregister(self, name: str, kind: str) -> None:
        if name in self._created:
            self._created.discard(name)
            resource_tracker.unregister(name, kind)


def leave_segments_to_their_makers() -> None:
    """Have this process and its forks delete only segments that they create, not those that they
    attach to. multiprocessing deletes both when a process ends, assuming that all processes share
    one tracker. Jobs and ranks are not the notebook's descendants: they would delete the notebook's
    segments, and a rank those of another rank."""
    module: Any = shared_memory
    module.resource_tracker = _Tracker()
    module.SharedMemory.__init__ = _attach


def _attach(
    self: Any, name: str | None = None, create: bool = False, size: int = 0, **options: Any
) -> None:
    _thread_state.attaching = not create
    _original_init(self, name, create, size, **options)

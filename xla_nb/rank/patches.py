"""What libraries do otherwise in a job and its ranks: tqdm's bars for notebooks, torch's loading of
NumPy's numbers, multiprocessing's segments of shared memory."""

from __future__ import annotations

import importlib
import threading
from multiprocessing import resource_tracker, shared_memory
from types import ModuleType
from typing import Any

from xla_nb.patching import when_imported


def install() -> None:
    """All of it, now or once a library is imported."""
    when_imported("tqdm.notebook", _draw_as_text)
    when_imported("torch.serialization", _let_torch_open_numpys)
    leave_segments_to_their_makers()


def _draw_as_text(notebook: ModuleType) -> None:
    """A rank has no page to draw widgets on; lines of the plain bar become bars of the panel
    (views/observer.py)."""
    from tqdm.std import tqdm, trange  # type: ignore[import-untyped]

    vars(notebook).update(tqdm=tqdm, tqdm_notebook=tqdm, trange=trange, tnrange=trange)


def _let_torch_open_numpys(serialization: ModuleType) -> None:
    """`xm.mesh_reduce` sends what it is given through `torch.save` and `torch.load`, which since
    torch 2.6 opens NumPy's numbers and arrays only where a program says so. They hold no code."""
    numpy: Any = importlib.import_module("numpy")
    core: Any = importlib.import_module(numpy.ndarray(0).__reduce__()[0].__module__)  # by release
    kinds = {type(numpy.dtype(code)) for code in numpy.typecodes["All"]}
    made_by = [core._reconstruct, core.scalar, numpy.ndarray, numpy.dtype]
    vars(serialization)["add_safe_globals"]([*made_by, *kinds])


_init: Any = shared_memory.SharedMemory.__init__
_here = threading.local()


class _Tracker:
    """What `shared_memory` calls: passes on what is said of segments made here."""

    def __init__(self) -> None:
        self._made: set[str] = set()

    def register(self, name: str, kind: str) -> None:
        if not _here.attaching:
            self._made.add(name)
            resource_tracker.register(name, kind)

    def unregister(self, name: str, kind: str) -> None:
        if name in self._made:
            self._made.discard(name)
            resource_tracker.unregister(name, kind)


def leave_segments_to_their_makers() -> None:
    """Let this process, and those it forks, delete the segments that they make, not those that they
    attach to. multiprocessing deletes both at a process's end, since a process and those that it
    starts count as one. Jobs and ranks are not the notebook's descendants: they would delete the
    notebook's segments, and a rank those of another one."""
    module: Any = shared_memory
    module.resource_tracker = _Tracker()
    module.SharedMemory.__init__ = _attach


def _attach(
    self: Any, name: str | None = None, create: bool = False, size: int = 0, **options: Any
) -> None:
    _here.attaching = not create
    _init(self, name, create, size, **options)

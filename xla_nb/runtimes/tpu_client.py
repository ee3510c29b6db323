"""A rank finds its TPU once: torch_xla's client is the first, and nobody finds the slices again.

Tracing a Pallas kernel makes JAX start a client beside torch_xla's. On several slices it, too,
would look for the others, and wait for ever, unless SKIP_MEGASCALE_PJRT_CLIENT is true while it
starts. torch_xla sets that around each of its calls into JAX and takes it back, which is sound in
one thread only (_internal/jax_workarounds.py, jax_env_context; pytorch/xla issues 8812 and 8954).
The rule: here it is set once, after torch_xla's client is there, and stays; every client is written
down with the stack that caused it; and JAX starts none on a TPU while the variable is gone.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from xla_nb.program import tracebacks
from xla_nb.program.module_file import ModuleMap

GUARD = "SKIP_MEGASCALE_PJRT_CLIENT"

#: Where JAX starts its clients: `_init_backend` one of any platform, `make_tpu_client` a TPU's.
_BRIDGE = "jax._src.xla_bridge"
#: The modules of torch_xla that have `jax_env_context` by name.
_WITH_CONTEXT = ("torch_xla._internal.jax_workarounds", "torch_xla.core.xla_builder")


class SecondDiscovery(BaseException):
    """JAX was about to look for the TPU's other slices a second time.

    No Exception: JAX takes those for a platform that is not here, and goes on with the next.
    """


@dataclass(frozen=True)
class Client:
    """One client of this process, and what caused it: `by` is torch_xla or jax."""

    by: str
    platform: str
    stack: traceback.StackSummary


class Clients:
    """The clients of one rank, in the order in which they were started.

    `program` is the run's, by whose map the notebook's lines are known.
    """

    def __init__(self, program: Path) -> None:
        self._program = program
        self.started: list[Client] = []

    def counts(self) -> dict[str, int]:
        """How many each has started."""
        return dict(Counter(client.by for client in self.started))

    def open(self) -> None:
        """In a rank that has joined, before its function: torch_xla's client, then the guard."""
        import torch_xla

        torch_xla._XLAC._init_computation_client()
        self._note("torch_xla", os.environ.get("PJRT_DEVICE", ""))
        hold()
        when_imported(_BRIDGE, self._watch)

    def _watch(self, bridge: ModuleType) -> None:
        """From here on JAX's clients are counted, and those of a TPU are checked before."""
        for name, around in (("_init_backend", self._counted), ("make_tpu_client", self._guarded)):
            start = getattr(bridge, name, None)
            if start is None:
                print(
                    f"xla_nb: this version of JAX has no {_BRIDGE}.{name}: whether it starts a "
                    f"client of its own is not seen in this rank ({GUARD} is set all the same)",
                    file=sys.stderr,
                )
            else:
                setattr(bridge, name, around(start))

    def _counted(self, start: Callable[[str], Any]) -> Callable[[str], Any]:
        @functools.wraps(start)
        def counted(platform: str) -> Any:
            client = start(platform)
            self._note("jax", platform)
            return client

        return counted

    def _guarded(self, start: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(start)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            if os.environ.get(GUARD) != "true" and _would_discover():
                raise SecondDiscovery(self._refusal())
            return start(*args, **kwargs)

        return guarded

    def _note(self, by: str, platform: str) -> None:
        self.started.append(Client(by, platform, _stack()))

    def _refusal(self) -> str:
        labels = self._labels()
        place = tracebacks.place_in(_stack(), labels)
        so_far = ", ".join(
            f"{client.by}'s ({client.platform.lower()}, "
            f"{tracebacks.place_in(client.stack, labels) or 'not in the notebook'})"
            for client in self.started
        )
        return (
            f"JAX is about to start a TPU client{' at ' + place if place else ''}, and nothing "
            f"keeps it from looking for the other slices a second time, for which it would wait "
            f"for ever: {GUARD} is {os.environ.get(GUARD) or 'not set'}. xla_nb set it to true "
            f"when the rank began. The clients so far: {so_far}. What to do: do not set or remove "
            f"{GUARD} in the function, nor empty os.environ there"
        )

    def _labels(self) -> Container[str]:
        try:
            return ModuleMap.open(self._program).sources
        except OSError:  # the record is gone, and the count goes on
            return ()


def _stack() -> traceback.StackSummary:
    """The stack of whoever asks, all of it: the notebook may be far below JAX. Its lines of source
    are read when it is shown."""
    frames = traceback.walk_stack(sys._getframe(2))
    found = traceback.StackSummary.extract(frames, lookup_lines=False)
    found.reverse()
    return found


def hold() -> None:
    """Set the guard for the life of this process, and keep torch_xla from taking it back.

    Its context would set the variable and restore what it found, in any number of threads; with
    this in its place nothing is written to the environment that a client may be reading.
    """
    os.environ[GUARD] = "true"
    with contextlib.suppress(ImportError):  # who imports it later would have its own
        importlib.import_module(_WITH_CONTEXT[0])
    for name in _WITH_CONTEXT:
        module: Any = sys.modules.get(name)
        if hasattr(module, "jax_env_context"):
            module.jax_env_context = _held


@contextlib.contextmanager
def _held() -> Iterator[None]:
    """What `jax_env_context` is in a rank."""
    yield


def _would_discover() -> bool:
    """Whether a client on a TPU would look for slices that torch_xla's client has found."""
    slices = os.environ.get("MEGASCALE_NUM_SLICES", "")
    several = slices.isdecimal() and int(slices) > 1
    return several or os.environ.get("PJRT_DEVICE", "").startswith("TPU")


# ---------------------------------------------------------------- a module that may come later


def when_imported(name: str, then: Callable[[ModuleType], None]) -> None:
    """Call `then` with that module: now if it has been imported, else right after its import."""
    module = sys.modules.get(name)
    if module is not None:
        then(module)
    else:
        sys.meta_path.insert(0, _Finder(name, then))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module, as the other finders do. It stays: another thread may be at this list."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name, self._then = name, then
        self._asking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name or self._asking:
            return None
        self._asking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._asking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._then)
        return spec


class _Loader(importlib.abc.Loader):
    """Loads as another loader does, then says so."""

    def __init__(self, loader: importlib.abc.Loader, then: Callable[[ModuleType], None]) -> None:
        self._loader, self._then = loader, then

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._then(module)

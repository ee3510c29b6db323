"""Keeps JAX in a rank from discovering the TPU's slices a second time, after torch_xla did.

Tracing a Pallas kernel makes JAX start a client beside torch_xla's. On several slices that client
would look for the other slices, and wait forever, unless SKIP_MEGASCALE_PJRT_CLIENT is true.
torch_xla sets the variable around each of its calls into JAX, which is safe in one thread only
(_internal/jax_workarounds.py, jax_env_context; pytorch/xla issues 8812 and 8954). Here it is set
once, after torch_xla's client has started, and JAX starts no TPU client without it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from xla_nb.importing import when_imported
from xla_nb.program import tracebacks
from xla_nb.program.module_file import ModuleMap

GUARD = "SKIP_MEGASCALE_PJRT_CLIENT"

#: Where JAX starts its clients: `_init_backend` for any platform, `make_tpu_client` for a TPU.
_BRIDGE = "jax._src.xla_bridge"
#: The modules of torch_xla that bind `jax_env_context`.
_WITH_CONTEXT = ("torch_xla._internal.jax_workarounds", "torch_xla.core.xla_builder")


class SecondDiscovery(BaseException):
    """JAX was about to look for the TPU's other slices a second time.

    Not an Exception: JAX takes those as a missing platform and tries the next one.
    """


@dataclass(frozen=True)
class Client:
    """One client of this process, with the stack that started it; `by` is torch_xla or jax."""

    by: str
    platform: str
    stack: traceback.StackSummary


class Clients:
    """The clients of one rank, in the order they were started.

    `program` is the run's module, whose map gives the notebook's lines.
    """

    def __init__(self, program: Path) -> None:
        self._program = program
        self.started: list[Client] = []

    def counts(self) -> dict[str, int]:
        """The number of clients that each library has started."""
        return dict(Counter(client.by for client in self.started))

    def open(self) -> None:
        """In a rank that has joined, before its function: start torch_xla's client, then guard."""
        import torch_xla

        torch_xla._XLAC._init_computation_client()
        self._note("torch_xla", os.environ.get("PJRT_DEVICE", ""))
        hold()
        when_imported(_BRIDGE, self._watch)

    def _watch(self, bridge: ModuleType) -> None:
        """Count JAX's clients from here on, and check those of a TPU before they start."""
        for name, around in (("_init_backend", self._counted), ("make_tpu_client", self._guarded)):
            start = getattr(bridge, name, None)
            if start is None:
                print(
                    f"xla_nb: this version of JAX has no {_BRIDGE}.{name}, so clients that JAX "
                    f"starts in this rank are not counted or checked ({GUARD} is still set).",
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
            f"JAX is about to start a TPU client{' at ' + place if place else ''} that would look "
            f"for the other slices a second time and wait forever: {GUARD} is "
            f"{os.environ.get(GUARD) or 'not set'}. Clients so far: {so_far}. Do not change "
            f"{GUARD} or clear os.environ in the function; xla_nb set it when the rank began."
        )

    def _labels(self) -> Container[str]:
        try:
            return ModuleMap.open(self._program).sources
        except OSError:  # the record may be gone; only line names are lost
            return ()


def _stack() -> traceback.StackSummary:
    """The caller's whole stack, because the notebook may be far below JAX; source lines are read
    only when it is shown."""
    frames = traceback.walk_stack(sys._getframe(2))
    stack = traceback.StackSummary.extract(frames, lookup_lines=False)
    stack.reverse()
    return stack


def hold() -> None:
    """Set the guard for the life of this process, and keep torch_xla from undoing it.

    torch_xla's context sets the variable and restores its old value, in any number of threads; with
    `_held` in its place nothing writes to an environment that a client may be reading.
    """
    os.environ[GUARD] = "true"
    with contextlib.suppress(ImportError):  # now, because a later import would bring its context
        importlib.import_module(_WITH_CONTEXT[0])
    for name in _WITH_CONTEXT:
        module: Any = sys.modules.get(name)
        if hasattr(module, "jax_env_context"):
            module.jax_env_context = _held


@contextlib.contextmanager
def _held() -> Iterator[None]:
    """Replaces `jax_env_context` in a rank."""
    yield


def _would_discover() -> bool:
    """Whether a TPU client would look for slices that torch_xla's client has already found."""
    slices = os.environ.get("MEGASCALE_NUM_SLICES", "")
    several = slices.isdecimal() and int(slices) > 1
    return several or os.environ.get("PJRT_DEVICE", "").startswith("TPU")

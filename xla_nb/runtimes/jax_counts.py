"""JAX's compilations and the memory of its device.

Read from JAX's listeners (jax.monitoring), its devices and its threads' stacks only, so that
watching does not slow down a rank that compiles.
"""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any

from xla_nb.runtimes.gauges import Counts

#: jax/_src/dispatch.py names the event, jax/_src/compiler.py has the function.
_COMPILED = "/jax/core/compile/backend_compile_duration"
_COMPILER, _COMPILE = "jax._src.compiler", "compile_or_get_cached"


class Compilations:
    """The compilations of one process so far."""

    def __init__(self) -> None:
        self._compiled = 0
        self._seconds = 0.0

    def listen(self) -> None:
        """Start counting; called once, in a rank."""
        import jax

        jax.monitoring.register_event_duration_secs_listener(self._hear)

    def _hear(self, event: str, duration_secs: float, **_: object) -> None:
        if event == _COMPILED:
            self._compiled += 1
            self._seconds += duration_secs

    def counts(self) -> Counts:
        """A compilation in progress counts as a miss that is not compiled yet."""
        return Counts(
            hits=0,
            misses=self._compiled + _compiling(),
            compiles=self._compiled,
            compile_seconds=self._seconds,
            steps=0,
            fallbacks={},
        )


def _compiling() -> bool:
    """Whether the main thread, which runs the user's function, is in JAX's compiler."""
    frame: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if frame.f_code.co_name == _COMPILE and frame.f_globals.get("__name__") == _COMPILER:
            return True
        frame = frame.f_back
    return False


def memory() -> tuple[int, int] | None:
    """Bytes in use on this rank's device, and its capacity; None on the CPU."""
    jax: Any = sys.modules["jax"]
    stats = jax.local_devices()[0].memory_stats()
    if not stats or "bytes_limit" not in stats:
        return None
    return stats["bytes_in_use"], stats["bytes_limit"]

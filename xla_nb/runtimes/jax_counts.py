"""What JAX says of itself while it runs: compilations, and the memory of its device.

The rule: only what JAX publishes to listeners (jax.monitoring), what its devices tell, and where
its threads stand; a rank that compiles is not slowed down by being watched.
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


class Heard:
    """What one process has heard so far."""

    def __init__(self) -> None:
        self._compiled = 0
        self._seconds = 0.0

    def listen(self) -> None:
        """From here on; called once, in a rank."""
        import jax

        jax.monitoring.register_event_duration_secs_listener(self._hear)

    def _hear(self, event: str, duration_secs: float, **_: object) -> None:
        if event == _COMPILED:
            self._compiled += 1
            self._seconds += duration_secs

    def counts(self) -> Counts:
        """A compilation under way is a miss that is not compiled yet."""
        return Counts(
            hits=0,
            misses=self._compiled + _compiling(),
            compiles=self._compiled,
            compile_seconds=self._seconds,
            steps=0,
            fallbacks={},
            clients={"jax": len(sys.modules["jax._src.xla_bridge"]._backends)},
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
    """Bytes in use and there at all on this rank's device; None on the CPU."""
    jax: Any = sys.modules["jax"]
    found = jax.local_devices()[0].memory_stats()
    if not found or "bytes_limit" not in found:
        return None
    return found["bytes_in_use"], found["bytes_limit"]

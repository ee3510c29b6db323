"""What JAX says of itself while it runs: compilations, and the memory of its device.

The rule: only what JAX publishes to listeners (jax.monitoring) and its devices tell; a rank that
compiles is not slowed down by being watched.
"""

from __future__ import annotations

import sys
from typing import Any

from xla_nb.meter import Counts

#: jax/_src/dispatch.py: the lowering that comes right before a compilation, and the compilation.
_LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"
_COMPILED = "/jax/core/compile/backend_compile_duration"


class _Heard:
    """So far, in this process."""

    lowered = 0
    compiled = 0
    seconds = 0.0


def listen() -> None:
    """From here on; called once, in a rank."""
    import jax

    jax.monitoring.register_event_duration_secs_listener(_hear)


def _hear(event: str, duration_secs: float, **_: object) -> None:
    if event == _LOWERED:
        _Heard.lowered += 1
    elif event == _COMPILED:
        _Heard.compiled += 1
        _Heard.seconds += duration_secs


def counts() -> Counts:
    """A lowering without its compilation is one under way."""
    return Counts(
        hits=0,
        misses=_Heard.lowered,
        compiles=_Heard.compiled,
        compile_seconds=_Heard.seconds,
        steps=0,
        fallbacks={},
    )


def memory() -> tuple[int, int] | None:
    """Bytes in use and there at all on this rank's device; None on the CPU."""
    jax: Any = sys.modules["jax"]
    found = jax.local_devices()[0].memory_stats()
    if not found or "bytes_limit" not in found:
        return None
    return found["bytes_in_use"], found["bytes_limit"]

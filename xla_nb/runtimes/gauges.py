"""A runtime's figures for the meter: compilations, steps, memory, the collective in progress."""

from __future__ import annotations

import abc
from collections import Counter
from typing import Any, NamedTuple

from xla_nb.stopwatch import Wait

#: `.item()` only reads a value, but torch_xla counts it as an operator that ran on the CPU.
_ITEM = "aten::_local_scalar_dense"


class Counts(NamedTuple):
    """torch_xla's counters at one moment, or another runtime's equivalents."""

    hits: int = 0  # graphs found in the compilation cache
    misses: int = 0  # graphs not found in it, which are compiled next
    compiles: int = 0
    compile_seconds: float = 0.0
    steps: int = 0
    fallbacks: Counter[str] = Counter()  # noqa: RUF012 # operators that ran on the CPU


def counts(xlac: Any) -> Counts:
    """Read `torch_xla._XLAC`; takes about 20 µs and no lock that training holds for long."""
    compile_data = xlac._xla_metric_data("CompileTime") or (0, 0.0, ())
    names = [name for name in xlac._xla_counter_names() if name.startswith("aten::")]
    return Counts(
        hits=xlac._xla_counter_value("CachedCompile") or 0,
        misses=xlac._xla_counter_value("UncachedCompile") or 0,
        compiles=compile_data[0],
        compile_seconds=compile_data[1] / 1e9,
        steps=xlac._xla_counter_value("MarkStep") or 0,
        fallbacks=Counter({n: xlac._xla_counter_value(n) or 0 for n in names if n != _ITEM}),
    )


def executed(xlac: Any) -> int:
    """The number of graphs looked up so far, each to be executed."""
    return sum(xlac._xla_counter_value(name) or 0 for name in ("CachedCompile", "UncachedCompile"))


def device_memory(xlac: Any, device: str) -> tuple[int, int] | None:
    """Bytes in use on a torch_xla device, and its capacity; None if unknown."""
    try:
        info = xlac._xla_memory_info(device)
        return info["bytes_used"], info["bytes_limit"]
    except (RuntimeError, KeyError):  # "GetAllocatorStats is not supported": the CPU client
        return None


class Gauges(abc.ABC):
    """A runtime's figures; safe to read from any thread of a rank.

    The defaults are for runtimes whose collectives are part of a compiled program."""

    @abc.abstractmethod
    def counts(self) -> Counts:
        """Compilations and steps so far."""

    def waiting(self) -> Wait | None:
        """The collective that this rank waits in; None if there is none, or it is not visible."""
        return None

    def waited(self) -> float | None:
        """Seconds that this rank has waited in collectives so far, including the current one; None
        if that is not visible."""
        return None

    def executed(self) -> int | None:
        """The number of graphs looked up so far; None if not counted. Takes a microsecond."""
        return None

    def memory(self) -> tuple[int, int] | None:
        """Bytes in use on the device, and its capacity; None if unknown."""
        return None

"""The minimum that lets `xmp.spawn(start_method="fork")` start N processes on a CPU.

The baseline for a launch and for a training step: torch_xla's own code and a device plugin that
only counts devices. No collectives.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

import torch_xla
from torch_xla.distributed import xla_multiprocessing as xmp
from torch_xla.experimental import plugins


class Host(plugins.DevicePlugin):  # type: ignore[misc]
    """A host with `chips` chips, each a process with the built-in CPU client."""

    def __init__(self, chips: int) -> None:
        super().__init__()
        self.chips = chips
        self.all_here = multiprocessing.get_context("fork").Barrier(chips)

    def physical_chip_count(self) -> int:
        return self.chips

    def configure_multiprocess(self, local_rank: int, local_world_size: int) -> None:
        # Each process's one device has number 0, but ranks need different ordinals.
        torch_xla._XLAC._xla_get_device_ordinal = lambda device: local_rank
        torch_xla._XLAC._xla_get_default_device_ordinal = lambda: local_rank
        # As on a TPU, no rank continues alone: if one ended before the last began, torch_xla's
        # process pool would also give it the last one's work.
        self.all_here.wait()


def spawn(function: Callable[..., object], args: tuple[Any, ...] = (), n: int = 4) -> None:
    plugins._plugin_registry["CPU"] = Host(n)
    plugins.using_dynamic_plugins = lambda: True
    xmp.spawn(function, args=args, start_method="fork")

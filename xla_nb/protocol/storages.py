"""Storages of torch, made again around memory that a parcel has or maps."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable
from typing import Any

from xla_nb.protocol.mapped import file_of


def raw_storage(memory: Any, shared: bool) -> Any:
    """shared: where the memory is still shared, torch is to know, or its `share_memory_()` would
    move the storage elsewhere."""
    torch: Any = importlib.import_module("torch")
    if len(memory) == 0:
        return torch.UntypedStorage(0)
    file = file_of(memory) if shared else None
    if file is not None:
        with contextlib.suppress(FileNotFoundError):  # closed since the memory was mapped
            fd = file.detach()
            try:
                return torch.UntypedStorage._new_shared_fd_cpu(fd, len(memory))
            finally:
                os.close(fd)
    return torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()


def typed_storage(raw: Any, dtype: Any) -> Any:
    torch: Any = importlib.import_module("torch")
    return torch.storage.TypedStorage(wrap_storage=raw, dtype=dtype, _internal=True)


def with_typed_storage(rebuild: Callable[..., Any], raw: Any, *arguments: Any) -> Any:
    """torch (2.9) pickles the storage of float8 and uint16 tensors bare, and rebuilds a wrapped
    one."""
    torch: Any = importlib.import_module("torch")
    return rebuild(typed_storage(raw, torch.uint8), *arguments)

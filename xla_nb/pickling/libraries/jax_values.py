"""Convert JAX arrays and torchax tensors to NumPy arrays and CPU tensors.

Nothing here communicates, since other processes may not take part. An array sharded over several
processes can be read only where this process has a copy; otherwise it is `Spread`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any


class Spread(ValueError):
    """Raised for an array of which this process has only a part."""

    def __init__(self, array: Any) -> None:
        super().__init__(
            f"an array {tuple(array.shape)} {array.dtype} sharded over "
            f"{len(array.sharding.device_set)} devices"
        )


def is_jax(value: object) -> bool:
    """True for a JAX array; does not import JAX."""
    jax = sys.modules.get("jax")
    return jax is not None and hasattr(jax, "Array") and isinstance(value, jax.Array)


def is_torch(value: object) -> bool:
    """True for a torch tensor, including torchax ones; does not import torch."""
    torch = sys.modules.get("torch")
    return torch is not None and hasattr(torch, "Tensor") and isinstance(value, torch.Tensor)


def is_torchax(value: object) -> bool:
    """True for a torchax tensor or a view of one; its data is a JAX array."""
    packages = (base.__module__.partition(".")[0] for base in type(value).__mro__)
    return is_torch(value) and "torchax" in packages


def is_here(array: Any) -> bool:
    """True if this process can read all of a JAX array without the others."""
    return bool(array.is_fully_addressable or array.is_fully_replicated)


def to_numpy(array: Any) -> Any:
    """Copy a JAX array to a NumPy array. Raises `Spread`."""
    import numpy as np

    if is_jax(array) and not is_here(array):
        raise Spread(array)
    return np.array(array)


def of_torch(tensor: Any) -> Any:
    """Return a CPU tensor as a NumPy array that shares its memory if NumPy has the dtype."""
    with without_torchax():
        tensor = tensor.detach().cpu()
        try:
            return tensor.numpy()
        except TypeError:  # bfloat16 and others that NumPy has only from JAX
            import jax.numpy as jnp

            name = str(tensor.dtype).removeprefix("torch.")
            return tensor.float().numpy().astype(getattr(jnp, name).dtype)


def to_torch(numbers: Any, dtype: Any) -> Any:
    """Return a NumPy array as a CPU tensor, which takes over its memory."""
    import torch

    with without_torchax():
        try:
            return torch.from_numpy(numbers)
        except TypeError:  # bfloat16 and others that NumPy has only from JAX
            return torch.from_numpy(numbers.astype("float32")).to(dtype)


def home(tensor: Any) -> Any:
    """Return a torchax tensor as a CPU tensor. Raises `Spread`."""
    import torch

    cpu = to_torch(to_numpy(tensor.jax()), tensor.dtype)
    with without_torchax():
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(cpu, requires_grad=tensor.requires_grad)
        return cpu.requires_grad_(tensor.requires_grad)


@contextlib.contextmanager
def without_torchax() -> Iterator[None]:
    """Use torch itself, even where torchax is enabled."""
    import torch
    from torch.utils import _mode_utils

    with _mode_utils.no_dispatch(), torch._C.DisableTorchFunction():
        yield

"""JAX arrays and torchax tensors as values that other libraries read: NumPy, and torch on the CPU.

The rule: nothing here communicates. Of an array that is spread over several processes, this one
can read the whole only where it has a copy; otherwise the array is `Spread`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any


class Spread(ValueError):
    """An array of which this process holds only a part."""

    def __init__(self, array: Any) -> None:
        super().__init__(
            f"an array {tuple(array.shape)} {array.dtype} that is spread over "
            f"{len(array.sharding.device_set)} devices"
        )


def is_jax(value: object) -> bool:
    """Whether this is a JAX array; JAX is never imported to find out."""
    jax = sys.modules.get("jax")
    return jax is not None and hasattr(jax, "Array") and isinstance(value, jax.Array)


def is_torch(value: object) -> bool:
    """Whether this is a torch tensor, a torchax one among them; torch is never imported."""
    torch = sys.modules.get("torch")
    return torch is not None and hasattr(torch, "Tensor") and isinstance(value, torch.Tensor)


def is_torchax(value: object) -> bool:
    """Whether this is a torchax tensor (or a view of one), whose data is a JAX array."""
    packages = (base.__module__.partition(".")[0] for base in type(value).__mro__)
    return is_torch(value) and "torchax" in packages


def is_here(array: Any) -> bool:
    """Whether this process can read all of a JAX array by itself."""
    return bool(array.is_fully_addressable or array.is_fully_replicated)


def to_numpy(array: Any) -> Any:
    """A JAX array as a NumPy array of its own; raises `Spread`."""
    import numpy as np

    if is_jax(array) and not is_here(array):
        raise Spread(array)
    return np.array(array)


def of_torch(tensor: Any) -> Any:
    """A CPU tensor as a NumPy array, which shares its memory where NumPy has such numbers."""
    with without_torchax():
        tensor = tensor.detach().cpu()
        try:
            return tensor.numpy()
        except TypeError:  # bfloat16 and the like, which NumPy has from JAX
            import jax.numpy as jnp

            name = str(tensor.dtype).removeprefix("torch.")
            return tensor.float().numpy().astype(getattr(jnp, name).dtype)


def to_torch(numbers: Any, dtype: Any) -> Any:
    """A NumPy array as a tensor on the CPU, which takes its memory over."""
    import torch

    with without_torchax():
        try:
            return torch.from_numpy(numbers)
        except TypeError:  # bfloat16 and the like, which NumPy has from JAX
            return torch.from_numpy(numbers.astype("float32")).to(dtype)


def home(tensor: Any) -> Any:
    """A torchax tensor as a CPU tensor; raises `Spread`."""
    import torch

    cpu = to_torch(to_numpy(tensor.jax()), tensor.dtype)
    with without_torchax():
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(cpu, requires_grad=tensor.requires_grad)
        return cpu.requires_grad_(tensor.requires_grad)


@contextlib.contextmanager
def without_torchax() -> Iterator[None]:
    """Where torchax is enabled, torch itself all the same."""
    import torch
    from torch.utils import _mode_utils

    with _mode_utils.no_dispatch(), torch._C.DisableTorchFunction():
        yield

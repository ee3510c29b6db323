"""Values of tensors that are there already, read without recording, compiling or executing.

torch_xla records operations and computes when it must. Whoever reads a tensor that is only
recorded makes it compute, and a view that is brought up to date adds an output to the step's graph,
which then is compiled anew. So a tensor is looked at below torch's functionalization, where it is
what was last computed, and counts as pending if that is not its value now.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any


def is_lazy(tensor: Any) -> bool:
    """Whether torch_xla holds it."""
    with sys.modules["torch"]._C.DisableTorchFunction():
        return bool(tensor.device.type == "xla")


def is_pending(tensor: Any) -> bool:
    """Whether reading it would record or compute something; never for tensors on the CPU."""
    torch: Any = sys.modules["torch"]
    with torch._C.DisableTorchFunction():
        if tensor.device.type != "xla":
            return False
        inner = _computed(torch, tensor)
        native: Any = importlib.import_module("torch_xla")._XLAC
        if native._check_tensor_need_materialization([inner])[0]:
            return True
        return _is_outdated(torch, native, tensor, inner)


def _computed(torch: Any, tensor: Any) -> Any:
    """The tensor without what functionalization would do first."""
    return torch._from_functional_tensor(tensor) if torch._is_functional_tensor(tensor) else tensor


def _is_outdated(torch: Any, native: Any, tensor: Any, inner: Any) -> bool:
    """Whether the memory of a tensor was written to through another one (`b = a[0]; a.add_(1)`).

    A probe over the same memory is brought up to date instead of it: it has what was last written,
    which is the tensor's own if it is up to date. For views that cannot be told, so that they are
    outdated once their memory has been written to."""
    if not torch._is_functional_tensor(tensor) or not torch._functionalize_has_data_mutation(
        tensor
    ):
        return False
    probe = torch._to_functional_tensor(inner)
    torch._functionalize_unsafe_set(probe, tensor)
    torch._functionalize_sync(probe)
    newest = torch._from_functional_tensor(probe)
    return bool(native._xla_get_tensor_id(newest) != native._xla_get_tensor_id(inner))


def is_sharded(tensor: Any) -> bool:
    """Whether reading it would gather it from several devices, which compiles and executes."""
    torch: Any = sys.modules["torch"]
    with torch._C.DisableTorchFunction():
        if tensor.device.type != "xla":
            return False
        native: Any = importlib.import_module("torch_xla")._XLAC
        return native._get_xla_sharding_spec(_computed(torch, tensor)) not in ("", "{replicated}")


def compute(tensors: Sequence[Any]) -> None:
    """Let torch_xla compute these, in one graph. All ranks have to ask for the same ones: their
    graphs may have collectives."""
    if tensors:
        native: Any = importlib.import_module("torch_xla")._XLAC
        native._xla_sync_multi(list(tensors), devices=[], wait=True, sync_xla_data=True)


def on_host(tensor: Any) -> Any:
    """A tensor that is not pending, as one on the CPU; it waits for what the device still does."""
    torch: Any = sys.modules["torch"]
    with torch._C.DisableTorchFunction():
        if tensor.device.type == "xla":
            native: Any = importlib.import_module("torch_xla")._XLAC
            return native._xla_get_cpu_tensors([_computed(torch, tensor)])[0]
        return tensor.detach()

"""Pickle torch objects of which torch's own pickling loses something, or for which it finds no
name.

torch turns a parameter of a subclass into a plain Parameter. It leaves out gradients and hooks,
which `held` returns, and loses attributes of a tensor, or fails, if they refer back to it. Storages
are re-created around memory that a parcel contains or maps.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import types
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from xla_nb.pickling import code_facts, rebuild
from xla_nb.pickling.mapped_files import file_of

#: What torch leaves out of a tensor that is not computed from others.
HELD = ("grad", "_backward_hooks", "_post_accumulate_grad_hooks")


def held(tensor: Any) -> dict[str, object]:
    """Return what torch leaves out of this tensor."""
    if not tensor.is_leaf:
        return {}
    held = {name: getattr(tensor, name) for name in HELD}
    return {name: obj for name, obj in held.items() if obj is not None and (name == HELD[0] or obj)}


def reduced_tensor(tensor: Any, left_out: Mapping[str, object]) -> Any:
    """Return the tensor's reducer value; NotImplemented if torch loses nothing."""
    torch: Any = sys.modules["torch"]
    kind = type(tensor)
    if issubclass(kind, torch.nn.Parameter) and _is_pickled_by_torch(kind):
        with torch._C.DisableTorchFunctionSubclass():
            data, requires_grad = tensor.data, tensor.requires_grad
        made = parameter, (kind, data, requires_grad)
        return _with_state(made, tensor.__getstate__(), left_out)
    state = None
    if kind is torch.Tensor and tensor.dtype in torch.storage._new_dtypes():
        make, arguments = tensor._reduce_ex_internal(5)
        reduced, state = (with_typed_storage, (make, *arguments)), tensor.__getstate__()
    elif left_out or (_is_reduced_by_torch(kind) and vars(tensor)):
        make, arguments, *rest = _reduced_by_torch(tensor)
        state = rest[0] if rest else None
        if (
            make is torch._tensor._rebuild_from_type_v2
            and kind.__setstate__ is torch.Tensor.__setstate__
        ):
            *arguments, state = arguments  # which may refer back to the tensor
            arguments = *arguments, None
        reduced = make, arguments
    else:
        return NotImplemented
    return _with_state(reduced, state, left_out)


def _reduced_by_torch(tensor: Any) -> Any:
    """Reduce without torch's warning that hooks are not sent: they are."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="backward hook .* will not be serialized")
        return tensor.__reduce_ex__(5)


def _is_pickled_by_torch(kind: Any) -> bool:
    """True if a class of parameters does not define its own pickling."""
    torch: Any = sys.modules["torch"]
    return bool(kind.__reduce_ex__ is torch.nn.Parameter.__reduce_ex__)


def _is_reduced_by_torch(kind: Any) -> bool:
    return bool(kind.__reduce_ex__ is sys.modules["torch"].Tensor.__reduce_ex__)


def home(tensor: Any) -> Any:
    """Return a tensor on a device as a CPU tensor."""
    cpu = tensor.detach().cpu()
    is_parameter = isinstance(tensor, sys.modules["torch"].nn.Parameter)
    return cpu if is_parameter else cpu.requires_grad_(tensor.requires_grad)


def reduced_home(tensor: Any, cpu: Any, left_out: Mapping[str, object]) -> Any:
    """Return the reducer value of a tensor on a device, over the CPU tensor `cpu`."""
    if not isinstance(tensor, sys.modules["torch"].nn.Parameter):
        reduced = reduced_tensor(cpu, left_out)
        return cpu.__reduce_ex__(5) if reduced is NotImplemented else reduced
    plain: Any = sys.modules["torch"].nn.Parameter
    kind = type(tensor) if _is_pickled_by_torch(type(tensor)) else plain
    state = None if kind is plain else tensor.__getstate__()
    return _with_state((parameter, (kind, cpu, tensor.requires_grad)), state, left_out)


def _with_state(reduced: Any, state: object, left_out: Mapping[str, object]) -> Any:
    return (*reduced, (state, left_out), None, None, fill_tensor) if state or left_out else reduced


def parameter(kind: type, data: Any, requires_grad: bool) -> Any:
    """Create a parameter like `torch.nn.Parameter.__new__`, without the `__new__` and `__init__` of
    its class, which may need other arguments."""
    torch: Any = importlib.import_module("torch")
    return torch.Tensor._make_subclass(kind, data, requires_grad)


def fill_tensor(tensor: Any, state: tuple[Any, Mapping[str, object]]) -> None:
    """Set a new tensor's own state, as torch does, and what torch leaves out."""
    torch: Any = importlib.import_module("torch")
    tensor_state, left_out = state
    if tensor_state and type(tensor).__setstate__ is not torch.Tensor.__setstate__:
        tensor.__setstate__(tensor_state)
    elif tensor_state:
        rebuild.fill_instance(tensor, tensor_state)
    rebuild.fill_attributes(tensor, left_out)


# ---------------------------------------------------------------- storages


def raw_storage(memory: Any, shared: bool) -> Any:
    """Create a storage. shared: if the memory is still shared, tell torch, or its `share_memory_()`
    would move the storage elsewhere."""
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
    """Rebuild with a wrapped storage: torch (2.9) pickles the storage of float8 and uint16 tensors
    bare and expects a wrapped one."""
    torch: Any = importlib.import_module("torch")
    return rebuild(typed_storage(raw, torch.uint8), *arguments)


# ---------------------------------------------------------------- objects with a name


def reduced_by_name(torch: Any, obj: Any) -> Any:
    """Return the reducer value of an object that has a name; NotImplemented for others."""
    if isinstance(obj, torch.memory_format):  # its repr is `torch.channels_last`
        return getattr, (torch, str(obj).rpartition(".")[2])
    if isinstance(obj, torch.finfo | torch.iinfo):
        return type(obj), (getattr(torch, obj.dtype),)
    return NotImplemented


def reduced_loader(loader: Any) -> Any:
    """Reduce a DataLoader without the persistent workers that it has after the first loop."""
    attributes = vars(loader)
    if attributes.get("_iterator") is None or not code_facts.is_pickled_by_its_dict(type(loader)):
        return NotImplemented
    return object.__new__, (type(loader),), {**attributes, "_iterator": None}


#: torch's wrapper of an optimizer's `step`, which calls hooks and the profiler.
_HOOKED = "Optimizer.profile_hook_step.<locals>.wrapper"


def reduced_step(function: types.FunctionType) -> Any:
    """Return the reducer value of an optimizer's `step` wrapped by torch; NotImplemented for
    others.

    torch wraps it when the first optimizer of a class is created. The wrapper has the name of what
    it wraps, `SGD.step`, which a rank would find unwrapped if no optimizer of the class exists yet.
    The step of AdamW is Adam's.
    """
    if function.__code__.co_qualname != _HOOKED or code_facts.is_the_notebooks(function):
        return NotImplemented
    cls = code_facts.value_of(function.__module__, function.__qualname__.rpartition(".")[0])
    return (step, (cls,)) if hasattr(cls, "_patch_step_function") else NotImplemented


def step(cls: Any) -> Any:
    """Return the `step` of an optimizer class as torch wraps it."""
    cls._patch_step_function(object.__new__(cls))
    return cls.step

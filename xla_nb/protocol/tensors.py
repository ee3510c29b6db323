"""Tensors of torch, where torch's own pickling loses something of them.

It makes a plain Parameter of a parameter of another class and an ordinary tensor of one that was
made in inference mode. It leaves out gradients and hooks, which `held` has, and loses the
attributes of a tensor, or fails, where they lead back to it.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from xla_nb.protocol import remake, storages

#: What torch leaves out of a tensor that is not computed from others.
HELD = ("grad", "_backward_hooks", "_post_accumulate_grad_hooks")


def held(tensor: Any) -> dict[str, object]:
    """What torch leaves out of this one."""
    if not tensor.is_leaf:
        return {}
    return {name: value for name in HELD if (value := getattr(tensor, name)) is not None}


def reduced(tensor: Any, held: Mapping[str, object]) -> Any:
    """The tensor as a reducer's value; NotImplemented where torch loses nothing."""
    torch: Any = sys.modules["torch"]
    kind = type(tensor)
    if issubclass(kind, torch.nn.Parameter) and _is_pickled_by_torch(kind):
        with torch._C.DisableTorchFunctionSubclass():
            data, requires_grad = tensor.data, tensor.requires_grad
        return _reduced_parameter(kind, data, requires_grad, tensor.__getstate__(), held)
    own = None
    if kind is torch.Tensor and tensor.dtype in torch.storage._new_dtypes():
        rebuild, arguments = tensor._reduce_ex_internal(5)
        made, own = (storages.with_typed_storage, (rebuild, *arguments)), tensor.__getstate__()
    elif held or (_is_reduced_by_torch(kind) and (_is_inference(tensor) or vars(tensor))):
        make, arguments, *rest = _reduced_by_torch(tensor)
        own = rest[0] if rest else None
        if make is torch._tensor._rebuild_from_type_v2 and _is_filled_by_torch(kind):
            *arguments, own = arguments  # which may lead back to the tensor
            arguments = *arguments, None
        made = make, arguments
    else:
        return NotImplemented
    return _with_state(_in_its_mode(tensor, *made), own, held)


def _reduced_by_torch(tensor: Any) -> Any:
    """Without torch's warning that hooks are not sent: they are."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="backward hook .* will not be serialized")
        return tensor.__reduce_ex__(5)


def _is_pickled_by_torch(kind: Any) -> bool:
    """Whether a class of parameters does not say itself how they are pickled."""
    torch: Any = sys.modules["torch"]
    return bool(kind.__reduce_ex__ is torch.nn.Parameter.__reduce_ex__)


def _is_reduced_by_torch(kind: Any) -> bool:
    return bool(kind.__reduce_ex__ is sys.modules["torch"].Tensor.__reduce_ex__)


def _is_filled_by_torch(kind: Any) -> bool:
    return bool(kind.__setstate__ is sys.modules["torch"].Tensor.__setstate__)


def _reduced_parameter(
    kind: type, data: Any, requires_grad: bool, own: object, held: Mapping[str, object]
) -> Any:
    """A parameter of this class, over `data`, with the state `own`, as a reducer's value."""
    return _with_state(_in_its_mode(data, parameter, (kind, data, requires_grad)), own, held)


def home(tensor: Any) -> Any:
    """A tensor on a device as a CPU tensor."""
    torch: Any = sys.modules["torch"]
    with torch.inference_mode(tensor.is_inference()):
        home = tensor.detach().cpu()
        parameter = isinstance(tensor, torch.nn.Parameter)
        return home if parameter else home.requires_grad_(tensor.requires_grad)


def reduced_home(tensor: Any, home: Any, held: Mapping[str, object]) -> Any:
    """A tensor on a device as a reducer's value, over the CPU tensor `home`."""
    if not isinstance(tensor, sys.modules["torch"].nn.Parameter):
        made = reduced(home, held)
        return home.__reduce_ex__(5) if made is NotImplemented else made
    plain: Any = sys.modules["torch"].nn.Parameter
    kind = type(tensor) if _is_pickled_by_torch(type(tensor)) else plain
    own = None if kind is plain else tensor.__getstate__()
    return _reduced_parameter(kind, home, tensor.requires_grad, own, held)


def _in_its_mode(tensor: Any, make: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return (in_inference_mode, (make, *arguments)) if _is_inference(tensor) else (make, arguments)


def _is_inference(tensor: Any) -> bool:
    with sys.modules["torch"]._C.DisableTorchFunctionSubclass():
        return bool(tensor.is_inference())


def _with_state(made: Any, own: object, held: Mapping[str, object]) -> Any:
    return (*made, (own, held), None, None, fill) if own or held else made


def parameter(kind: type, data: Any, requires_grad: bool) -> Any:
    """As `torch.nn.Parameter.__new__` makes one, without the `__new__` and `__init__` of its
    class, which may want other arguments."""
    torch: Any = importlib.import_module("torch")
    return torch.Tensor._make_subclass(kind, data, requires_grad)


def in_inference_mode(make: Callable[..., Any], *arguments: Any) -> Any:
    torch: Any = importlib.import_module("torch")
    with torch.inference_mode():
        return make(*arguments)


def fill(tensor: Any, state: tuple[Any, Mapping[str, object]]) -> None:
    """Give a new tensor its own state, as torch does, and what torch leaves out."""
    torch: Any = importlib.import_module("torch")
    own, held = state
    if own and type(tensor).__setstate__ is not torch.Tensor.__setstate__:
        tensor.__setstate__(own)
    elif own:
        remake.fill_instance(tensor, own)
    remake.fill_attributes(tensor, held)

"""Move tensors between the XLA device of a rank and the host, hidden from autograd.

The inputs of a collective are executed and read, and its results are written where torch_xla's own
collective would write them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch_xla
from torch import Tensor
from torch.utils.dlpack import from_dlpack
from torch.utils.weak import WeakIdKeyDictionary

from xla_nb.simulation.refusals import NotCarried

XLAC: Any = torch_xla._XLAC
#: torch_xla's own functions, which `torch_names` and `host` replace.
_gather_into, _token = XLAC._xla_all_gather_out, XLAC._get_all_reduce_token
_placeholder = XLAC._xla_create_placeholder_tensor
_WITHOUT_DLPACK = torch.float8_e4m3fn, torch.float8_e5m2

#: Tensors with which torch_xla traces a loop's body (experimental/scan.py); they have no value.
_placeholders = WeakIdKeyDictionary()


def watch_placeholders() -> None:
    """Record placeholder tensors, because reading one ends the process."""

    def create(shape: object) -> Tensor:
        tensor: Tensor = _placeholder(shape)
        _placeholders[tensor] = None
        return tensor

    XLAC._xla_create_placeholder_tensor = create


def fetch(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the values on the host, read-only because they may be the device's own memory.

    Also executes all pending operations, once.
    """
    tensors = list(tensors)
    for tensor in tensors:
        if tensor.device.type != "xla":
            raise RuntimeError(f"Expected XLA tensor. Got: {tensor.type()}")
    if len(_placeholders):
        _refuse_placeholders(tensors)
    are_pending = XLAC._check_tensor_need_materialization
    with _allow_execution():
        if any(are_pending(tensors)):
            XLAC._xla_sync_live_tensors(str(tensors[0].device), [], True)
        if any(are_pending(tensors)) or any(tensor.dtype in _WITHOUT_DLPACK for tensor in tensors):
            return [tensor.detach() for tensor in XLAC._xla_get_cpu_tensors(tensors)]
    # Uploads values that torch left on the host (torch.complex); to_dlpack would crash on them.
    XLAC._get_tensors_xla_device_data_node(tensors)
    XLAC._xla_wait_device_ops([])  # before this, a tensor has no readable buffer
    return [from_dlpack(XLAC._to_dlpack(tensor)) for tensor in tensors]


def upload(results: Sequence[Tensor], like: Tensor) -> list[Tensor]:
    """New tensors on the device of `like`."""
    devices = [str(like.device)] * len(results)
    tensors: list[Tensor] = XLAC._xla_tensors_from_aten(list(results), devices, None)
    return tensors


def write(tensors: Sequence[Tensor], results: Sequence[Tensor]) -> None:
    """Write in place as torch_xla does: a tensor gets another value and that value's shape.

    Autograd's version counters do not change. A write to a view does not show in its base. A write
    to a base shows in existing views, as DistributedDataParallel needs: its gradients are views of
    its buckets.
    """
    if not tensors:
        return
    for tensor, value in zip(tensors, upload(results, tensors[0]), strict=True):
        if tensor.shape == value.shape and _is_whole(tensor):
            with torch.no_grad():
                tensor.data.copy_(value)
        elif tensor.shape == value.shape:
            _unwrap(tensor).data.copy_(_unwrap(value))
        else:  # torch_xla's own way, from a gather of this process alone
            token = _token(str(tensor.device))
            _gather_into(tensor, value, token, 0, 1, [], False)


def _refuse_placeholders(tensors: list[Tensor]) -> None:
    _, sources = XLAC._get_tensors_xla_device_data_node(tensors)
    if any(map(XLAC._is_placecholder, sources)):
        reason = "the loop is compiled as a whole, including its collectives"
        fix = "Where xla_nb.simulated() is true, use a Python loop"
        raise NotCarried("a collective in torch_xla's scan", reason, fix)


def _is_whole(tensor: Tensor) -> bool:
    """Whether it covers all of its memory; `.data` and `.detach()` of a part are not views in
    torch."""
    return not tensor._is_view() and tensor.untyped_storage().nbytes() == tensor.nbytes


def _unwrap(tensor: Tensor) -> Tensor:
    """torch_xla's own tensor, below torch's handling of views ("functionalization")."""
    if not torch._is_functional_tensor(tensor):
        return tensor
    torch._sync(tensor)
    inner: Tensor = torch._from_functional_tensor(tensor)
    return inner


@contextlib.contextmanager
def _allow_execution() -> Iterator[None]:
    """Allow execution even inside `torch_xla.compile(full_graph=True)`: on a TPU the collective
    would be part of the graph; here the graph is cut at it."""
    was_allowed = XLAC._get_allow_execution()
    XLAC._set_allow_execution(True)
    try:
        yield
    finally:
        XLAC._set_allow_execution(was_allowed)

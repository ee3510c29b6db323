"""Install the collectives under the names that torch_xla and torch.distributed call.

`carry(carrier)` replaces them in this process: functions of `torch_xla._XLAC`, kernels of
`_c10d_functional` for XLA, the `xla` process group's point-to-point calls. Every name that
communicates is carried here or refused in `refusals`; none may return local values.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch._dynamo
import torch.distributed as dist
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_backend as backend
from torch import Tensor
from torch.library import Library

from xla_nb.simulation.collectives import Carrier, Reduction
from xla_nb.simulation.device import fetch, upload, watch_placeholders, write
from xla_nb.simulation.groups import Groups
from xla_nb.simulation.refusals import NotCarried

XLAC: Any = torch_xla._XLAC
T = TypeVar("T")
#: Kind of an all_reduce that performs an all_gather; torch and its users see an all_reduce.
_GATHER = "gather along "
#: The warning of torch_xla on a TPU.
_INEFFICIENT = (
    "Individual send/recv ops are inefficient on an XLA device. Consider using "
    "xla_model.collective_permute() and specifying all source-target pairs."
)
#: Never freed: it would take its kernels with it.
_FUNCTIONAL_KERNELS = Library("_c10d_functional", "IMPL")
_FUNCTIONAL_KINDS = {"product": "mul", "prod": "mul", "band": "and", "bor": "or"}


def _is_part_of_complex(value: Tensor) -> bool:
    """Whether it is the real view that torch.distributed creates of a complex tensor."""
    base = value._base
    return base is not None and base.is_complex() and not value.is_complex()


class XlacNames:
    """The functions of `torch_xla._XLAC` that communicate, by name."""

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier

    def install(self) -> None:
        for name, function in vars(type(self)).items():
            if name.startswith("_xla_") and hasattr(XLAC, name):
                setattr(XLAC, name, torch.compiler.disable(function.__get__(self)))

    def _result(self, host_value: Tensor, value: Tensor) -> Tensor:
        """Upload a result: a leaf for autograd that requires a gradient if `value` does."""
        return upload([host_value], value)[0].requires_grad_(value.requires_grad)

    def _xla_all_reduce(
        self, kind: str, value: Tensor, scale: float, groups: Groups, *_: object
    ) -> Tensor:
        host_values = fetch([value])
        (result,) = self._carrier.all_reduce(Reduction(kind, scale), host_values, groups)
        return self._result(result, value)

    def _xla_all_reduce_inplace(
        self, kind: str, values: Sequence[Tensor], scale: float, groups: Groups, *_: object
    ) -> None:
        if not isinstance(values, Sequence) or not values:
            raise TypeError("all_reduce in place: torch_xla needs a list of at least one tensor.")
        if any(map(_is_part_of_complex, values)):
            reason = "dist.all_reduce and broadcast make one, and XLA raises an error for it"
            fix = 'Use value = xm.all_reduce("sum", value)'
            raise NotCarried("reducing a real view of complex numbers in place", reason, fix)
        host_values = fetch(values)
        write(values, self._carrier.all_reduce(Reduction(kind, scale), host_values, groups))

    # `options`: dim, count, groups, and whether the layout is pinned.

    def _gather(self, values: Sequence[Tensor], *options: Any) -> list[Tensor]:
        dim, _, groups, *_ = options
        return self._carrier.all_gather(fetch(values), dim, groups)

    def _xla_all_gather(self, value: Tensor, *options: Any) -> Tensor:
        return upload(self._gather([value], *options), value)[0]

    def _xla_all_gather_out(self, out: Tensor, value: Tensor, token: T, *options: Any) -> T:
        return self._xla_all_gather_coalesced_out([out], [value], token, *options)

    def _xla_all_gather_coalesced(
        self, values: Sequence[Tensor], token: object, *options: Any
    ) -> list[object]:
        return [*upload(self._gather(values, *options), values[0]), token]

    def _xla_all_gather_coalesced_out(
        self, outs: Sequence[Tensor], values: Sequence[Tensor], token: T, *options: Any
    ) -> T:
        write(outs, self._gather(values, *options))
        return token

    # `options`: scale, then the same.

    def _scatter(self, kind: str, values: Sequence[Tensor], *options: Any) -> list[Tensor]:
        scale, dim, count, groups, *_ = options
        host_values = fetch(values)
        return self._carrier.reduce_scatter(Reduction(kind, scale), host_values, dim, count, groups)

    def _xla_reduce_scatter(
        self, kind: str, value: Tensor, token: T, *options: Any
    ) -> tuple[Tensor, T]:
        (result,) = self._scatter(kind, [value], *options)
        return self._result(result, value), token

    def _xla_reduce_scatter_out(
        self, kind: str, out: Tensor, value: Tensor, token: T, *options: Any
    ) -> T:
        return self._xla_reduce_scatter_coalesced_out(kind, [out], [value], token, *options)

    def _xla_reduce_scatter_coalesced(
        self, kind: str, values: Sequence[Tensor], token: object, *options: Any
    ) -> list[object]:
        return [*upload(self._scatter(kind, values, *options), values[0]), token]

    def _xla_reduce_scatter_coalesced_out(
        self, kind: str, outs: Sequence[Tensor], values: Sequence[Tensor], token: T, *options: Any
    ) -> T:
        write(outs, self._scatter(kind, values, *options))
        return token

    def _xla_all_to_all(
        self,
        value: Tensor,
        token: object,
        split: int,
        concat: int,
        count: int,
        groups: Groups,
        *_: object,
    ) -> tuple[Tensor, object]:
        (host_value,) = fetch([value])
        result = self._carrier.all_to_all(host_value, split, concat, count, groups)
        return self._result(result, value), token

    def _xla_collective_permute(
        self, value: Tensor, token: object, pairs: Sequence[Sequence[int]]
    ) -> tuple[Tensor, object]:
        (host_value,) = fetch([value])
        return self._result(self._carrier.permute(host_value, pairs), value), token


def _single(coalesced: Callable[..., list[Tensor]]) -> Callable[..., Tensor]:
    """Turn a kernel of several tensors into a kernel of one."""

    def single(self: FunctionalNames, value: Tensor, *options: object) -> Tensor:
        return coalesced(self, [value], *options)[0]

    return single


class FunctionalNames:
    """The kernels of `_c10d_functional` for XLA; unlike torch_xla's, they respect the group."""

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier

    def install(self) -> None:
        operators = dir(torch.ops._c10d_functional)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "overriding a previously registered kernel"
            for name, function in vars(type(self)).items():
                if not name.startswith("_") and name != "install" and name in operators:
                    bound = torch.compiler.disable(function.__get__(self))
                    _FUNCTIONAL_KERNELS.impl(name, bound, "XLA", allow_override=True)

    def _groups(self, name: str) -> Groups:
        if not name or not dist.is_initialized():
            return []
        ranks = dist.get_process_group_ranks(dist.distributed_c10d._resolve_process_group(name))
        return [] if len(ranks) == self._carrier.size else [ranks]

    def all_reduce_coalesced(self, values: Sequence[Tensor], kind: str, group: str) -> list[Tensor]:
        if kind.startswith(_GATHER):
            results = self._carrier.all_gather(fetch(values), int(kind.removeprefix(_GATHER)), [])
        else:
            reduction = Reduction(_FUNCTIONAL_KINDS.get(kind, kind))
            results = self._carrier.all_reduce(reduction, fetch(values), self._groups(group))
        return upload(results, values[0])

    def all_gather_into_tensor_coalesced(
        self, values: Sequence[Tensor], size: int, group: str
    ) -> list[Tensor]:
        gathered = self._carrier.all_gather(fetch(values), 0, self._groups(group))
        return upload(gathered, values[0])

    def reduce_scatter_tensor_coalesced(
        self, values: Sequence[Tensor], kind: str, size: int, group: str
    ) -> list[Tensor]:
        reduction, groups = Reduction(_FUNCTIONAL_KINDS.get(kind, kind)), self._groups(group)
        shares = self._carrier.reduce_scatter(reduction, fetch(values), 0, size, groups)
        return upload(shares, values[0])

    all_reduce = _single(all_reduce_coalesced)
    all_gather_into_tensor = _single(all_gather_into_tensor_coalesced)
    reduce_scatter_tensor = _single(reduce_scatter_tensor_coalesced)

    def all_to_all_single(
        self, value: Tensor, out_splits: Sequence[int], in_splits: Sequence[int], group: str
    ) -> Tensor:
        if len({*out_splits, *in_splits}) > 1:
            raise NotImplementedError(
                "XLA's all_to_all needs parts of equal size, "
                f"not {[*in_splits]} to {[*out_splits]}."
            )
        groups = self._groups(group)
        count = len(groups[0]) if groups else self._carrier.size
        (host_value,) = fetch([value])
        result = self._carrier.all_to_all(host_value, 0, 0, count, groups)
        return upload([result], value)[0]

    def broadcast(self, value: Tensor, source: int, group: str) -> Tensor:
        groups = self._groups(group)
        (host_value,) = fetch([value])
        root = groups[0][source] if groups else source
        contribution = host_value if self._carrier.rank == root else torch.zeros_like(host_value)
        return upload(self._carrier.all_reduce(Reduction("sum"), [contribution], groups), value)[0]

    def wait_tensor(self, value: Tensor) -> Tensor:
        return value


def _carry_model(carrier: Carrier) -> None:
    """Replace functions of `xla_model` that are simpler to replace as a whole than through the
    functions that they call."""

    def rendezvous(
        payload: bytes = b"", ordinals: Sequence[int] | None = None, tag: str | None = None
    ) -> list[bytes]:
        if ordinals and len(ordinals) != carrier.size:
            raise ValueError("Only global rendezvous is supported")
        if not isinstance(payload, bytes):
            raise TypeError(f"`payload` must be bytes, not {type(payload)}")
        if not XLAC._get_allow_execution():
            raise RuntimeError(
                "A rendezvous executes pending operations, which "
                "torch_xla.compile(full_graph=True) does not allow."
            )
        torch_xla.sync()
        return carrier.rendezvous(payload)

    gather_in_graph = xm._all_gather_using_all_reduce

    def gather(
        value: Tensor, dim: int = 0, groups: Groups | None = None, pin_layout: bool = True
    ) -> Tensor:
        """Move each value once, where torch_xla pads with zeros and sums."""
        if torch.compiler.is_compiling() or groups == []:
            padded: Tensor = gather_in_graph(value, dim=dim, groups=groups, pin_layout=pin_layout)
            return padded
        value.size(dim)  # raises for a scalar, as torch_xla does
        axis = dim % value.dim()
        if not groups:
            reduced: Tensor = torch.ops._c10d_functional.all_reduce(value, f"{_GATHER}{axis}", "")
            return reduced
        result = carrier.all_gather(fetch([value]), axis, groups)
        requires_grad = value.requires_grad and torch.is_grad_enabled()
        return upload(result, value)[0].requires_grad_(requires_grad)

    xm.xla_rendezvous = rendezvous
    xm._all_gather_using_all_reduce = gather


def _cut_compiled_graphs() -> None:
    """Make torch.compile cut its graphs at collectives, which run between the compiled parts."""
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, operator = name.partition("::")
        if namespace in ("_c10d_functional", "_c10d_functional_autograd"):
            packet = getattr(getattr(torch.ops, namespace), operator.partition(".")[0])
            torch._dynamo.disallow_in_graph([packet, packet.default])
    # Its in-place collectives would leave a graph that only writes their results back, and
    # torch_xla cannot compile such a graph.
    torch._dynamo.trace_rules.add("torch_xla.distributed.xla_backend")


def _carry_pairs(carrier: Carrier) -> None:
    """Replace the point-to-point calls of torch.distributed's `xla` process group."""

    def send(_: object, tensors: Sequence[Tensor], target: int, tag: int = 0) -> Any:
        logging.warning(_INEFFICIENT)
        for value in fetch(tensors):
            carrier.send_receive(value, carrier.rank, target)
        return backend._ret_work(list(tensors))

    def recv(_: object, tensors: Sequence[Tensor], source: int, tag: int = 0) -> Any:
        logging.warning(_INEFFICIENT)
        host_values = fetch(tensors)
        write(tensors, [carrier.send_receive(value, source, carrier.rank) for value in host_values])
        return backend._ret_work(list(tensors))

    backend.ProcessGroupXla.send = send
    backend.ProcessGroupXla.recv = recv


def carry(carrier: Carrier) -> None:
    """Replace the names in this process."""
    watch_placeholders()
    XlacNames(carrier).install()
    FunctionalNames(carrier).install()
    _carry_model(carrier)
    _cut_compiled_graphs()
    _carry_pairs(carrier)

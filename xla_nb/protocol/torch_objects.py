"""Objects of torch that are found by a name, or made of one, where pickle does not do so."""

from __future__ import annotations

from typing import Any

from xla_nb.protocol import parts


def reduced(torch: Any, obj: Any) -> Any:
    """Such an object as a reducer's value, NotImplemented for others."""
    if isinstance(obj, torch.memory_format):  # which calls itself `torch.channels_last`
        return getattr, (torch, str(obj).rpartition(".")[2])
    if isinstance(obj, torch.finfo | torch.iinfo):
        return type(obj), (getattr(torch, obj.dtype),)
    kind = type(obj).__name__ if type(obj).__module__ == "torch._ops" else ""
    if kind == "OpOverloadPacket" and not _is_defined_in_python(obj):
        namespace, _, name = obj._qualified_op_name.partition("::")
        return getattr, (getattr(torch.ops, namespace), name)
    if kind == "OpOverload" and not obj._defined_in_python:
        return getattr, (obj.overloadpacket, obj._overloadname)
    return NotImplemented


def reduced_loader(loader: Any) -> Any:
    """A DataLoader without persistent workers, which it has once somebody has looped over it."""
    held = vars(loader)
    if held.get("_iterator") is None or not parts.is_pickled_by_its_dict(type(loader)):
        return NotImplemented
    return object.__new__, (type(loader),), {**held, "_iterator": None}


def _is_defined_in_python(packet: Any) -> bool:
    """Such as the notebook's own, which ranks do not have before the definition is executed."""
    return any(getattr(packet, name)._defined_in_python for name in packet.overloads())

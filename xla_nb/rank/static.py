"""What objects of the user's hold, found without any code of theirs.

`isinstance`, `getattr`, `vars` and a class's own `__mro__` may run properties, `__getattr__`,
`__class__` or a metaclass. These functions read what Python keeps in classes and instances.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from xla_nb.protocol import hidden

_MRO: Any = type.__dict__["__mro__"]
_DICT: Any = type.__dict__["__dict__"]


def mro(kind: type) -> tuple[type, ...]:
    found: tuple[type, ...] = _MRO.__get__(kind)
    return found


def held_by_class(kind: type) -> types.MappingProxyType[str, Any]:
    """What a class itself has, without its bases."""
    found: types.MappingProxyType[str, Any] = _DICT.__get__(kind)
    return found


def is_one(value: object, module: str, name: str) -> bool:
    """Whether its class is `name` of a module that is imported, or derived from it."""
    found = vars(sys.modules.get(module, sys)).get(name)
    return found is not None and found in mro(type(value))


def is_tensor(value: object) -> bool:
    return is_one(value, "torch", "Tensor")


def is_array(value: object) -> bool:
    """Whether it is a NumPy array or one of NumPy's numbers."""
    return is_one(value, "numpy", "ndarray") or is_one(value, "numpy", "generic")


def jax_array(value: object) -> Any:
    """The JAX array that this is, or that a torchax tensor has its elements in; else None."""
    held = value
    if is_one(value, "torchax.tensor", "Tensor"):
        held = attributes(value).get("_elem")
    return held if is_one(held, "jax", "Array") else None


def is_module(value: object) -> bool:
    """Whether it is a model of torch's."""
    return is_one(value, "torch.nn", "Module")


def attributes(value: object) -> dict[str, Any]:
    """What an instance holds: in its `__dict__`, and in the slots of its class."""
    found = {
        name: member.__get__(value)
        for kind in reversed(mro(type(value)))
        for name, member in list(held_by_class(kind).items())
        if type(member) is types.MemberDescriptorType and _is_set(member, value)
    }
    found.update(hidden.attributes(value))
    return {name: held for name, held in found.items() if type(name) is str}


def _is_set(member: Any, value: object) -> bool:
    try:
        member.__get__(value)
    except AttributeError:
        return False
    return True


def is_plain_object(value: object) -> bool:
    """Whether all that an instance holds is in `attributes`: its class is written in Python, and
    derived from no type that keeps something of its own."""
    kind = type(value)
    if not type.__dict__["__flags__"].__get__(kind) & _HEAP:
        return False
    slots = sum(
        type(member) is types.MemberDescriptorType
        for base in mro(kind)
        for member in held_by_class(base).values()
    )
    size = type.__dict__["__basicsize__"].__get__(kind)
    return bool(size <= _Plain.__basicsize__ + slots * 8)


class _Plain:
    pass


_HEAP = 1 << 9  # Py_TPFLAGS_HEAPTYPE

"""Classes that answer for themselves what `__class__` or `__dict__` of an instance is, as proxies
do: what it is all the same."""

from __future__ import annotations

import ctypes
import gc
import types
from typing import Any

#: What a class may define for its instances, and setting it on the class means something else.
_OF_CLASSES = {"__class__", "__dict__", "__name__", "__bases__", "__base__", "__mro__"}


def hides_its_dict(kind: type) -> bool:
    """Whether the `__dict__` of its instances is not what holds their attributes."""
    found = (vars(base)["__dict__"] for base in kind.__mro__ if "__dict__" in vars(base))
    return type(next(found, None)) not in (types.GetSetDescriptorType, types.NoneType)


def attributes(obj: object) -> dict[str, Any]:
    """What holds the attributes of an instance, if it can have any."""
    if type.__dict__["__dictoffset__"].__get__(type(obj)) == 0:
        return {}
    get = ctypes.pythonapi.PyObject_GenericGetDict
    get.restype, get.argtypes = ctypes.py_object, (ctypes.py_object, ctypes.c_void_p)
    # ctypes would ask the object itself whether it is a py_object.
    held: dict[str, Any] = get(ctypes.py_object(obj), None)
    return held


def give(cls: type, name: str, value: object) -> bool:
    """Give a class what its instances have under a name under which it has something itself; False
    for other names."""
    if name not in _OF_CLASSES:
        return False
    (content,) = gc.get_referents(vars(cls))
    content[name] = value
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(cls))  # for lookups that are remembered
    return True

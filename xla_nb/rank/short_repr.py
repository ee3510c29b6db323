"""A value in a few words, without reading what is on a device.

`repr` of an XLA tensor computes it. So tensors are told by shape and dtype, here and in whatever a
`__repr__` of the user's asks of them.
"""

from __future__ import annotations

import importlib
import itertools
import reprlib
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from xla_nb.protocol import hostile
from xla_nb.rank import static
from xla_nb.rank.deadline import Deadline
from xla_nb.wording import in_one_line

T = TypeVar("T")

_LONGEST = 80  # characters
_SECONDS = 0.5  # for a repr of the user's
_ATOMS = {int, float, bool, type(None), complex, str}


def short_repr(value: object, deadline: Deadline) -> str:
    """In at most 80 characters; `<Net: its repr() raised ValueError>` where it has none. Raises
    `hostile.TooLong` when the deadline is over before."""
    deadline.check()
    if static.is_tensor(value):
        return in_one_line(of_tensor(value), _LONGEST)
    if type(value) in _ATOMS:
        return in_one_line(_Unread().repr(value), _LONGEST)
    text = hostile.words(lambda: _guarded(value), "repr()", min(_SECONDS, deadline.left))
    return named(text, value)


def of_tensor(tensor: Any) -> str:
    """`Tensor (4, 3) float32`."""
    with sys.modules["torch"]._C.DisableTorchFunction():
        shape, dtype = tuple(tensor.shape), str(tensor.dtype)
    return f"{hostile.name_of(type(tensor))} {shape} {dtype.removeprefix('torch.')}"


def unread(look: Callable[[], T]) -> T:
    """What `look` returns; in this thread it cannot read tensors that are on a device."""
    if "torch" not in sys.modules:
        return look()
    with _tensors_unread():
        return look()


def _guarded(value: object) -> str:
    return unread(lambda: in_one_line(_Unread().repr(value), _LONGEST))


def named(text: str, value: object) -> str:
    """The text; of a value whose repr has failed, with its class."""
    if not text.startswith("<its repr()"):
        return text
    return f"<{hostile.name_of(type(value)).rpartition('.')[2]}: {text[1:]}"


class Short(reprlib.Repr):
    """Short reprs, also of what is long in bytes; NumPy's numbers as Python's, dicts in their own
    order."""

    def __init__(self) -> None:
        super().__init__()
        self.maxother = self.maxstring = 60

    def repr1(self, x: Any, level: int) -> str:
        if type(x) in (bytes, bytearray) and len(x) > self.maxstring:
            return f"{x[: self.maxstring]!r}…"  # of all it could take minutes
        if static.is_one(x, "numpy", "number") or static.is_one(x, "numpy", "bool_"):
            return str(x)
        return super().repr1(x, level)

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        shown = list(itertools.islice(x.items(), self.maxdict if level > 0 else 0))
        parts = [
            f"{self.repr1(key, level - 1)}: {self.repr1(one, level - 1)}" for key, one in shown
        ]
        return f"{{{', '.join([*parts, *(['...'] if len(x) > len(shown) else [])])}}}"


class _Unread(Short):
    def repr1(self, x: Any, level: int) -> str:
        if static.is_tensor(x):
            return of_tensor(x)
        if static.is_one(x, "numpy", "ndarray"):
            array = importlib.import_module("numpy").asarray(x)
            if array.ndim:
                return f"{hostile.name_of(type(x))} {array.shape} {array.dtype}"
        return super().repr1(x, level)


class Unread(Exception):
    """What a `__repr__` wanted of a tensor on a device would have computed it."""


def _tensors_unread() -> Any:
    """While it is entered, this thread computes nothing with tensors on a device."""
    torch: Any = importlib.import_module("torch")
    tensor: Any = torch.Tensor
    texts = {tensor.__repr__, tensor.__str__, tensor.__format__}
    harmless = {tensor.dim, tensor.size, tensor.numel, tensor.__len__, tensor.is_floating_point}

    class Mode(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, call: Any, kinds: Any, given: tuple[Any, ...] = (), named: Any = None
        ) -> Any:
            if call in texts:
                return of_tensor(given[0])
            name = getattr(call, "__name__", "")
            inputs = (*given, *(named or {}).values())
            if name != "__get__" and call not in harmless and any(map(_is_on_device, inputs)):
                raise Unread(f"{name} of a tensor on a device")
            return call(*given, **(named or {}))

    return Mode()


def _is_on_device(value: object) -> bool:
    if type(value) in (list, tuple):
        return any(map(_is_on_device, value))  # type: ignore[call-overload]
    if not static.is_tensor(value):
        return False
    with sys.modules["torch"]._C.DisableTorchFunction():
        return value.device.type != "cpu"  # type: ignore[attr-defined, no-any-return]

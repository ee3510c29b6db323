"""Short texts for values: a rank's results, and its variables.

`repr` of an XLA tensor computes it, which is acceptable only for a result. So `short_repr` shows
tensors on a device by shape and dtype, also inside a user's `__repr__`.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import reprlib
import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

from xla_nb import untrusted
from xla_nb.pickling.libraries import jax_values
from xla_nb.wording import in_one_line

T = TypeVar("T")

_LONGEST = 80  # characters
_SECONDS = 0.5  # time limit for the repr of a variable
_RESULT_SECONDS = 2.0  # and for that of a result: less than processes have to exit (run/run.py)
_ATOMS = {int, float, bool, type(None), complex, str}  # with a quick repr of Python's own
#: Functions of tensors that compute nothing.
_HARMLESS = {"__get__", "dim", "size", "numel", "__len__", "is_floating_point"}
_ROWS, _NAME = 12, 40  # most values of a dict shown one by one, and characters of a name
_ADDRESS = re.compile(r" at 0x[0-9a-f]+(?=>)")  # only valid on the rank


class _Short(reprlib.Repr):
    """Short reprs, also of long bytes, with tensors and arrays as shape and dtype, NumPy numbers
    as Python's, and dicts in their own order. `reads`: show the value of a tensor of one number."""

    def __init__(self, *, reads: bool) -> None:
        super().__init__()
        self.reads = reads
        self.maxother = self.maxstring = 60

    def repr1(self, x: Any, level: int) -> str:
        if type(x) in (bytes, bytearray) and len(x) > self.maxstring:
            return f"{x[: self.maxstring]!r}…"  # the whole could take minutes
        if is_numpy(x, "number", "bool_"):
            return str(x)
        if jax_values.is_torch(x):
            return f"tensor({x.item()})" if self.reads and not x.shape else of_tensor(x)
        if (is_numpy(x, "ndarray") or jax_values.is_jax(x)) and x.shape:
            return f"{type(x).__name__} {x.shape} {x.dtype}"
        if type(x) is OrderedDict:  # a state_dict, say
            return f"OrderedDict({self.repr_dict(x, level)})"
        return super().repr1(x, level)

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        items = list(itertools.islice(x.items(), self.maxdict if level > 0 else 0))
        parts = [
            f"{self.repr1(key, level - 1)}: {self.repr1(value, level - 1)}" for key, value in items
        ]
        return f"{{{', '.join([*parts, *(['...'] if len(x) > len(items) else [])])}}}"

    def repr_instance(self, x: Any, level: int) -> str:
        return _ADDRESS.sub("", super().repr_instance(x, level))


def is_numpy(value: object, *kinds: str) -> bool:
    """Whether it is an instance of one of these NumPy classes; False if NumPy is not imported."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, tuple(getattr(numpy, kind) for kind in kinds))


def of_tensor(tensor: Any) -> str:
    """`Tensor (4, 3) float32`."""
    with sys.modules["torch"]._C.DisableTorchFunction():
        shape, dtype = tuple(tensor.shape), str(tensor.dtype)
    return f"{untrusted.name_of(type(tensor))} {shape} {dtype.removeprefix('torch.')}"


def short_repr(value: object, *, reads: bool = False) -> str:
    """The value in at most 80 characters; `<Net: its repr() raised ValueError>` if repr fails.
    `reads`: it is a result, and its tensors of one number show their value."""

    def shorten() -> str:
        return in_one_line(_Short(reads=reads).repr(value), _LONGEST)

    if type(value) in _ATOMS:
        return shorten()
    seconds = _RESULT_SECONDS if reads else _SECONDS
    text = untrusted.words(lambda: in_short(shorten, reads=reads), "repr()", seconds)
    if not text.startswith("<its repr()"):
        return text
    return f"<{untrusted.name_of(type(value)).rpartition('.')[2]}: {text[1:]}"


def numbers(value: object) -> dict[str, str]:
    """Texts for the values of a small dict with at least one number; empty for other values."""
    if type(value) is not dict or not 0 < len(value) <= _ROWS:
        return {}
    is_short = all(type(key) is str and key.isprintable() and len(key) <= _NAME for key in value)

    def texts() -> dict[str, str]:
        items = value.values()
        if not any(type(one) in (int, float) or getattr(one, "shape", None) == () for one in items):
            return {}
        return {key: in_one_line(_Short(reads=True).repr(one), _NAME) for key, one in value.items()}

    with contextlib.suppress(BaseException):  # from a user's repr
        return untrusted.within(_RESULT_SECONDS, texts) if is_short else {}
    return {}


class Unread(Exception):
    """An operation in a `__repr__` would have computed a tensor on a device."""


def in_short(function: Callable[[], T], *, reads: bool = False) -> T:
    """Call `function`, with tensors shown by shape and dtype in this thread. With `reads`, tensors
    of one number show their value; without it, nothing is computed with tensors on a device."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return function()

    class Mode(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            name = getattr(func, "__name__", "")
            if name in ("__repr__", "__str__", "__format__") and not (reads and args[0].dim() == 0):
                return of_tensor(args[0])
            inputs = (*args, *(kwargs or {}).values())
            if not reads and name not in _HARMLESS and any(map(_is_on_device, inputs)):
                raise Unread(f"{name} of a tensor on a device")
            return func(*args, **(kwargs or {}))

    with Mode():
        return function()


def _is_on_device(value: Any) -> bool:
    if type(value) in (list, tuple):
        return any(map(_is_on_device, value))
    if not jax_values.is_torch(value):
        return False
    with sys.modules["torch"]._C.DisableTorchFunction():
        return bool(value.device.type != "cpu")

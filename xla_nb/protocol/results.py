"""A rank's result on its way to the notebook.

Nothing here imports torch, which takes seconds; where a value is a tensor it is already imported.
"""

from __future__ import annotations

import enum
import io
import sys
import types
from collections.abc import Callable, Container
from dataclasses import replace
from typing import Any

from xla_nb.protocol import inherited, jax_values, parts, tensors
from xla_nb.protocol.keys import Keys
from xla_nb.protocol.likeness import fingerprint
from xla_nb.protocol.live import Live
from xla_nb.protocol.parcel import Packed
from xla_nb.protocol.pickling import Pickler, pickled
from xla_nb.protocol.refusals import Unshippable

#: The value in a result's parcel.
RESULT = "result"
#: What the parcel is about: fingerprints of the notebook's definitions that it names.
DEFINITIONS = "definitions"


class HomePickler(Pickler):
    """Values on devices become CPU tensors and NumPy arrays.

    `by_name` are top-level names of ``__main__`` that the notebook has itself, `named` those that
    are used.
    """

    def __init__(
        self, file: io.BytesIO, keep: Callable[..., Any], by_name: Container[str], keys: Keys
    ):
        super().__init__(file, keep, keys)
        self._by_name = by_name
        self.named: set[str] = set()
        self._live = Live({}, lambda _: None)
        self._as_sent: dict[type, Callable[[Any], Any]] = {}

    def write(self, values: dict[str, object]) -> None:
        self.make_empty()
        self.fill()
        super().write(values)

    def beside(self) -> Pickler:
        return HomePickler(io.BytesIO(), lambda _: None, self._by_name, Keys())

    def reduce_code(self, obj: Any) -> Any:
        kind = type(obj)
        if issubclass(kind, (type, types.FunctionType)):
            if not self._known(obj):
                return super().reduce_code(obj)
            self.named.add(obj.__qualname__.partition(".")[0])
            return obj.__qualname__
        if issubclass(kind, enum.Enum):
            named = kind.__members__.get(obj.name or "") is obj
            return (getattr, (kind, obj.name)) if named else super().reduce_code(obj)
        if kind not in self._as_sent:  # there may be a million
            self._as_sent[kind] = self._reduced_as_sent(kind)
        return self._as_sent[kind](obj)

    def _reduced_as_sent(self, kind: type) -> Callable[[Any], Any]:
        """How instances are reduced on the way out, but for those of a class that says it itself:
        these are pickled as it says."""
        if issubclass(kind, types.ModuleType):
            return self._live.reduce_special
        if parts.is_plain(kind) and kind.__flags__ & parts.HEAP_TYPE:  # not a view of a dict
            return self._live.reduce_plain
        own = parts.is_made_here(kind) and inherited.says_itself(kind)
        return super().reduce_code if own else self._live.reduce_special

    def _known(self, obj: type | types.FunctionType) -> bool:
        if obj.__module__ != "__main__" or "<locals>" in obj.__qualname__:
            return False
        first, *rest = obj.__qualname__.split(".")
        held = vars(sys.modules["__main__"]).get(first) if first in self._by_name else None
        for part in rest:
            held = getattr(held, part, None)
        return held is obj

    def reduce_xla_tensor(self, tensor: Any) -> Any:
        home = tensors.home(tensor)
        if isinstance(tensor, sys.modules["torch"].nn.Parameter):
            return tensors.reduced_home(tensor, home)
        reduced = self.reduce_tensor(home)
        return home.__reduce_ex__(5) if reduced is NotImplemented else reduced

    def reduce_xla_device(self, device: Any) -> Any:
        return NotImplemented

    def reduce_torchax_tensor(self, tensor: Any) -> Any:
        home = _whole(jax_values.home, tensor)
        if isinstance(home, sys.modules["torch"].nn.Parameter):
            return type(home), (home.data, home.requires_grad)
        return home.__reduce_ex__(5)

    def reduce_jax_array(self, array: Any) -> Any:
        return _whole(jax_values.to_numpy, array).__reduce_ex__(5)

    def reduce_jax_device(self, device: Any) -> Any:
        return type(device), ("cpu",)  # a notebook without torchax has no device "jax"


def _whole(convert: Callable[[Any], Any], value: Any) -> Any:
    try:
        return convert(value)
    except jax_values.Spread as spread:
        raise Unshippable(
            str(spread),
            "Return `xla_nb.torchax.gather(x)`, which every rank must call, or this rank's part, "
            "`x.addressable_data(0)` of the JAX array",
        ) from None


def pack_home(value: object, by_name: Container[str]) -> Packed:
    """A rank's result. Raises what pickling raises."""
    keys, main = Keys(), vars(sys.modules["__main__"])
    made = pickled({RESULT: value}, lambda file, keep: HomePickler(file, keep, by_name, keys))
    named = {name: fingerprint(main[name]) for name in sorted(made.writer.named)}
    return replace(made, about={DEFINITIONS: named})

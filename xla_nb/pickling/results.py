"""Pickle a rank's result for the notebook.

Nothing here imports torch, which takes seconds; if a value is a tensor, torch is already imported.
"""

from __future__ import annotations

import enum
import functools
import io
import pickle
import sys
import types
from collections.abc import Callable
from typing import Any

from xla_nb.pickling import code_facts, instances, rebuild
from xla_nb.pickling.functions_and_classes import Live
from xla_nb.pickling.libraries import jax_values, torch_values
from xla_nb.pickling.parcel import Packed
from xla_nb.pickling.pickler import Pickler, pickled
from xla_nb.pickling.refusals import Unshippable

#: The name of the value in a result's parcel.
RESULT = "result"


class HomePickler(Pickler):
    """Values on devices become CPU tensors and NumPy arrays; `hooks`: include hooks of tensors and
    optimizers."""

    def __init__(
        self,
        file: io.BytesIO,
        buffers: list[pickle.PickleBuffer],
        hooks: bool = True,
    ):
        super().__init__(file, buffers)
        self._hooks = hooks
        self._live = Live(joins=False)  # the notebook's names stay as they are
        as_sent = functools.cache(self._reducer_for)  # there may be a million
        self._as_sent: Callable[[type], Callable[[Any], Any]] = as_sent

    def reduce_code(self, obj: Any) -> Any:
        kind = type(obj)
        if issubclass(kind, (type, types.FunctionType)):
            return self._definition(obj)
        if issubclass(kind, enum.Enum):
            if code_facts.is_made_here(kind) and not _is_the_notebooks(kind):  # with its class
                return self.reduce_as_sent(obj)
            is_named = kind.__members__.get(obj.name or "") is obj
            return (getattr, (kind, obj.name)) if is_named else super().reduce_code(obj)
        return self._as_sent(kind)(obj)

    def _reducer_for(self, kind: type) -> Callable[[Any], Any]:
        """Return the reducer for instances of a class, the one used for sending to ranks, except
        for classes that define their own pickling."""
        if issubclass(kind, types.ModuleType):
            return self._live.reduce_special
        if kind is functools._lru_cache_wrapper:
            return self._definition
        if kind is types.MethodType:
            return self._method
        if not code_facts.is_made_here(kind):
            return self.reduce_as_sent
        if code_facts.is_made_by_pickle_alone(kind) and not code_facts.hides_its_dict(kind):
            return self._live.reduce_plain  # twice as fast
        return super().reduce_code if instances.says_itself(kind) else self.reduce_as_sent

    def _definition(self, obj: Any) -> Any:
        if _is_the_notebooks(obj):
            return rebuild.at_home, (_path(obj), rebuild.number_of(obj))
        return self.reduce_as_sent(obj)

    def _method(self, method: Any) -> Any:
        """Reduce a method of a class by its name there: its function has no other name."""
        owner, name = method.__self__, method.__name__
        if isinstance(owner, type) and getattr(owner, name, None) == method:
            return getattr, (owner, name)
        return self.reduce_as_sent(method)

    def _held(self, tensor: Any) -> dict[str, object]:
        extra = super()._held(tensor)
        return extra if self._hooks else {n: value for n, value in extra.items() if n == "grad"}

    def _reduce_optimizer(self, optimizer: Any) -> Any:
        return super()._reduce_optimizer(optimizer) if self._hooks else NotImplemented

    def reduce_xla_tensor(self, tensor: Any) -> Any:
        return torch_values.reduced_home(tensor, torch_values.home(tensor), self._held(tensor))

    def reduce_torchax_tensor(self, tensor: Any) -> Any:
        cpu = _convert(jax_values.home, tensor)
        if isinstance(cpu, sys.modules["torch"].nn.Parameter):
            return type(cpu), (cpu.data, cpu.requires_grad)
        return cpu.__reduce_ex__(5)

    def reduce_jax_array(self, array: Any) -> Any:
        return _convert(jax_values.to_numpy, array).__reduce_ex__(5)

    def reduce_jax_device(self, device: Any) -> Any:
        return type(device), ("cpu",)  # a notebook without torchax has no device "jax"


def _is_the_notebooks(definition: Any) -> bool:
    if not rebuild.number_of(definition):
        return False
    return definition.__module__ == "__main__" or not code_facts.is_found_by_name(definition)


def _path(definition: Any) -> str:
    """Return a name for a notebook that does not know the number: the one under which ranks hold
    it."""
    name = getattr(definition, "__qualname__", "")
    if code_facts.value_of("__main__", name) is definition:
        return str(name)
    namespace = list(vars(sys.modules["__main__"]).items())
    return str(next((alias for alias, value in namespace if value is definition), name))


def _convert(convert: Callable[[Any], Any], value: Any) -> Any:
    try:
        return convert(value)
    except jax_values.Spread as spread:
        raise Unshippable(
            str(spread),
            "Return `xla_nb.torchax.gather(x)`, which every rank must call, or this rank's part, "
            "the JAX array's `x.addressable_data(0)`",
        ) from None


def pack_home(value: object, tell: Callable[[str], None] = lambda text: None) -> Packed:
    """Return a rank's result as a parcel. Raises what pickling raises.

    `tell` receives a sentence if hooks had to be left out, as in torch's own pickling: what a hook
    refers to is no reason to lose what was trained.
    """
    try:
        return _packed(value, hooks=True)
    except Exception as problem:
        if "torch" not in sys.modules or isinstance(problem, Unshippable):
            raise
        try:
            parcel = _packed(value, hooks=False)
        except Exception:
            raise problem from None
        tell(f"was sent without tensor hooks and extra optimizer attributes: {problem}")
    return parcel


def _packed(value: object, hooks: bool) -> Packed:
    return pickled({RESULT: value}, lambda file, buffers: HomePickler(file, buffers, hooks))

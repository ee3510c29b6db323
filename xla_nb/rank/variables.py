"""The variables of a rank, described so that ranks can be compared.

Nothing of the user's is run but `__repr__`, for a short time; nothing is computed on a device
unless asked; and no name can take more than its time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib
import math
import types
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from xla_nb.protocol import hostile, jax_values
from xla_nb.protocol.variables import LARGEST, REST, Leaf, State, Values, Variable
from xla_nb.rank import lazy_values, static
from xla_nb.rank.content import Incomparable, blocks, content, pieces
from xla_nb.rank.deadline import Deadline
from xla_nb.rank.leaves import Elements, Found, Opaque, Plain, leaves
from xla_nb.rank.short_repr import short_repr
from xla_nb.wording import in_one_line

#: Leaves of a variable that are told one by one; those after them are told as one.
MOST = 2000
#: Seconds for all names, and for one of them.
ALL, EACH = 20.0, 10.0
_SHARDED = "it is sharded, and reading it would compute"
_TEXT = 60  # characters of a plain value


def names_of(namespace: Mapping[str, object], ours: Mapping[str, object]) -> list[str]:
    """The user's names, sorted: no modules, no `_names`, not what `ours` has put there."""
    return sorted(
        name
        for name, value in list(namespace.items())  # a thread of the user's may bind more
        if type(name) is str
        and not name.startswith("_")
        and type(value) is not types.ModuleType
        and not (name in ours and ours[name] is value)
    )


def describe(
    namespace: Mapping[str, object],
    names: Sequence[str],
    *,
    compute: bool = False,
    all_within: float = ALL,
    each_within: float = EACH,
) -> list[Variable]:
    """What the names hold; those that are not bound are left out.

    compute      whether values that are only recorded are computed first. Every rank has to be
                 asked for the same names then, since their graphs may have collectives
    all_within   seconds for all of them; names that are left then are told without their content
    each_within  seconds for one
    """
    whole = Deadline(all_within)
    looked = _Looked(compute)
    return [
        looked.variable(name, namespace[name], Deadline(each_within, whole))
        for name in names
        if name in namespace
    ]


def values(
    namespace: Mapping[str, object],
    wanted: Sequence[tuple[str, str]],
    *,
    room: int = LARGEST,
    within: float = ALL,
) -> list[Values]:
    """The elements of leaves, by name and path, with at most `room` bytes of data altogether and
    `within` seconds; of the others their blocks' digests. Pending ones are not computed. In the
    order of `wanted`."""
    deadline = Deadline(within)
    by_name: dict[str, list[str]] = {}
    for name, path in wanted:
        by_name.setdefault(name, []).append(path)
    answers: dict[tuple[str, str], Values] = {}
    for name, paths in by_name.items():
        found: dict[str, Any] = {}
        with contextlib.suppress(hostile.TooLong):
            found = _elements(namespace.get(name), paths, deadline)
        for path in paths:
            answer = _values(name, path, found.get(path), room, deadline)
            room -= len(answer.data or b"")
            answers[name, path] = answer
    return [answers[one] for one in wanted]


def _elements(value: object, paths: Collection[str], deadline: Deadline) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for leaf in leaves(value, deadline):
        if type(leaf) is Elements and leaf.path in paths:
            found[leaf.path] = leaf.value
            if len(found) == len(paths):
                break
    return found


def _values(name: str, path: str, value: Any, room: int, deadline: Deadline) -> Values:
    numpy: Any = importlib.import_module("numpy")
    if value is None:
        return Values(name, path, why="it is not there any more")
    try:
        why = _unreadable(value)
        why = why or ("it is not computed yet" if _is_pending(value) else "")
        why = why or (_SHARDED if _is_sharded(value) else "")
        if why:
            return Values(name, path, why=why)
        array = _array(value, deadline)
        if _wire_size(array) > room:
            return Values(name, path, blocks=blocks(array, deadline))
        parts = list(pieces(array, deadline))
        data = b"".join(part.view(numpy.uint8).data for part in parts if part.size)
    except hostile.TooLong as problem:
        return Values(name, path, why=f"reading it took {problem}")
    except Exception as problem:
        return Values(name, path, why=_why(problem))
    return Values(name, path, parts[0].dtype.str, data)


def _wire_size(array: Any) -> int:
    """Bytes of its elements as `pieces` gives them: at least four where NumPy lacks their type."""
    each: int = max(array.element_size(), 4) if static.is_tensor(array) else array.itemsize
    count: int = math.prod(array.shape)
    return count * each


class _Looked:
    """Describes variables. Tensors that models, optimizers and names share are read once."""

    def __init__(self, compute: bool) -> None:
        self._compute = compute
        self._known: dict[int, tuple[Any, Leaf]] = {}  # with the tensor, so that its id stays

    def variable(self, name: str, value: object, deadline: Deadline) -> Variable:
        kind, told = hostile.name_of(type(value)), _Leaves()
        try:
            if self._compute:
                lazy_values.compute(list(_pending(value, deadline)))
            for found in leaves(value, deadline):
                told.add(self._leaf(found, deadline), id(_held(found)))
        except hostile.TooLong as problem:
            told.add(Leaf("", kind, "late", why=f"looking at it took {problem}"))
        except Exception as problem:
            told.add(Leaf("", kind, "opaque", why=_why(problem)))
        lone = told.first if len(told.leaves) == 1 and told.first.shape is not None else None
        return Variable(
            name,
            kind,
            told.all(),
            lone.value if lone and lone.value else _text(value, deadline),
            lone.shape if lone else None,
            _common(leaf.dtype for leaf in told.leaves if leaf.shape is not None),
            _common(leaf.device for leaf in told.leaves if leaf.shape is not None),
            sum(told.sizes.values()),
        )

    def _leaf(self, found: Found, deadline: Deadline) -> Leaf:
        kind = hostile.name_of(type(_held(found)))
        if isinstance(found, Opaque):
            return Leaf(found.path, kind, "opaque", why=found.why)
        if isinstance(found, Plain):
            digest = hashlib.blake2b(found.data, digest_size=16).hexdigest()
            return Leaf(found.path, kind, "known", digest=digest, value=_plain_text(found.value))
        known = self._known.get(id(found.value))
        if known is None:
            known = found.value, _of_elements(found.value, kind, self._compute, deadline)
            self._known[id(found.value)] = known
        return dataclasses.replace(known[1], path=found.path)


def _text(value: object, deadline: Deadline) -> str:
    try:
        return short_repr(value, deadline)
    except hostile.TooLong:
        return ""


def _held(found: Found) -> object:
    return found.value


def _pending(value: object, deadline: Deadline) -> Iterator[Any]:
    for found in leaves(value, deadline):
        is_readable = isinstance(found, Elements) and not _unreadable(found.value)
        if is_readable and _is_pending(found.value):
            yield found.value


def _is_pending(value: object) -> bool:
    return static.is_tensor(value) and lazy_values.is_pending(value)


def _is_sharded(value: object) -> bool:
    return static.is_tensor(value) and lazy_values.is_sharded(value)


class _Leaves:
    """The leaves of a variable; those after the first MOST are told as one."""

    def __init__(self) -> None:
        self.leaves: list[Leaf] = []
        self.sizes: dict[int, int] = {}
        self._hasher = hashlib.blake2b(digest_size=16)
        self._more = 0
        self._state: State = "known"

    @property
    def first(self) -> Leaf:
        return self.leaves[0]

    def add(self, leaf: Leaf, one: int = 0) -> None:
        self.sizes[one] = leaf.nbytes
        if len(self.leaves) < MOST:
            self.leaves.append(leaf)
            return
        self._more += 1
        self._state = leaf.state if self._state == "known" else self._state
        self._hasher.update(f"{leaf.path} {leaf.shape} {leaf.dtype} {leaf.digest} ".encode())

    def all(self) -> tuple[Leaf, ...]:
        if not self._more:
            return tuple(self.leaves)
        digest = self._hasher.hexdigest() if self._state == "known" else ""
        rest = Leaf(REST, f"{self._more:,} more", self._state, digest=digest)
        return (*self.leaves, rest)


def _of_elements(value: Any, kind: str, is_computed: bool, deadline: Deadline) -> Leaf:
    about = _about(value)
    try:
        why = _unreadable(value)
        if why:
            return Leaf("", kind, "opaque", **about, why=why)
        if not is_computed and _is_pending(value):
            return Leaf("", kind, "pending", **about)
        if not is_computed and _is_sharded(value):
            return Leaf("", kind, "opaque", **about, why=_SHARDED)
        known = content(_array(value, deadline), deadline)
    except hostile.TooLong as problem:
        return Leaf("", kind, "late", **about, why=f"reading it took {problem}")
    except Exception as problem:
        return Leaf("", kind, "opaque", **about, why=_why(problem))
    text = repr(value) if type(value) in (int, float) else known.value
    return Leaf("", kind, "known", **about, **{**vars(known), "value": text})


def _why(problem: Exception) -> str:
    """Also of what a device says where its memory is gone, such as that of a donated array."""
    said = in_one_line(hostile.message_of(problem), 120)
    kind = hostile.name_of(type(problem))
    return said if type(problem) is Incomparable else f"reading it raised {kind}: {said}"


def _about(value: Any) -> dict[str, Any]:
    """The fields of a Leaf that are known without its elements."""
    if static.is_tensor(value):
        with importlib.import_module("torch")._C.DisableTorchFunction():
            size = value.numel() * value.element_size()
            shape, device = tuple(map(int, value.shape)), str(value.device)
            about = {"shape": shape, "dtype": _dtype(value), "device": device, "nbytes": size}
        return {**about, "part": "_is_sharded" in static.attributes(value)}  # torch_xla's FSDP
    array = static.jax_array(value)
    if array is not None:
        size = math.prod(array.shape) * array.dtype.itemsize
        return {"shape": array.shape, "dtype": _dtype(array), "device": "jax", "nbytes": size}
    if static.is_array(value):
        array = importlib.import_module("numpy").asarray(value)
        return {"shape": array.shape, "dtype": _dtype(array), "nbytes": array.nbytes}
    return {}


def _dtype(array: Any) -> str:
    return str(array.dtype).removeprefix("torch.")


def _unreadable(value: Any) -> str:
    """Why the elements of a tensor or JAX array cannot be read; "" if they can."""
    array = static.jax_array(value)
    if array is not None:
        return "" if jax_values.is_here(array) else "this rank has only a part of it"
    if not static.is_tensor(value):
        return ""
    torch: Any = importlib.import_module("torch")
    own = (static.held_by_class(kind) for kind in static.mro(type(value)))
    dispatch = next(kept["__torch_dispatch__"] for kept in own if "__torch_dispatch__" in kept)
    if dispatch is not static.held_by_class(torch.Tensor)["__torch_dispatch__"]:
        return f"values of type {hostile.name_of(type(value))} cannot be compared"
    with torch._C.DisableTorchFunction():
        if value.layout is not torch.strided or value.is_quantized or value.is_nested:
            return "only dense tensors can be compared"
        place = value.device.type
    return "" if place in ("cpu", "xla") else f"tensors on device {place} cannot be compared"


def _array(value: Any, deadline: Deadline) -> Any:
    """The elements, as something that `content` takes."""
    numpy: Any = importlib.import_module("numpy")
    array = static.jax_array(value)
    if array is not None:
        found = deadline.within(lambda: numpy.asarray(array))
        return found.astype("float32") if found.dtype.kind == "V" else found  # bfloat16, say
    if static.is_tensor(value):
        if lazy_values.is_lazy(value):
            return deadline.within(lambda: lazy_values.on_host(value))
        return lazy_values.on_host(value)
    return numpy.asarray(value) if static.is_array(value) else numpy.array(value, dtype="float64")


def _plain_text(value: object) -> str:
    kind = type(value)
    if kind in (int, float, bool, type(None), complex):
        return in_one_line(repr(value), _TEXT)
    if kind in (str, bytes):
        return in_one_line(repr(value[:_TEXT]), _TEXT)  # type: ignore[index]
    return ""


def _common(texts: Iterable[str]) -> str:
    """The one that all are; `several` if they differ."""
    found = set(texts)
    return found.pop() if len(found) == 1 else "several" if found else ""

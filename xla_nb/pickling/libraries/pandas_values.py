"""Keep pandas' copy-on-write reference counts, which protect memory shared by its objects.

pandas counts in `BlockValuesRefs` who refers to a block of memory, and does not pickle that. A
parcel keeps the memory shared, so without the count writing to `df` would change `y = df["label"]`.
Counts of one are kept as well: creating others from a frame does not change the frame.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from typing import Any

_INTERNALS, _MANAGERS = "pandas._libs.internals", "pandas.core.internals.managers"


def reduced(obj: Any) -> Any:
    """Return the reducer value of a block manager, index or count; NotImplemented for others."""
    if type(obj).__name__ == "BlockValuesRefs" and type(obj).__module__ == _INTERNALS:
        return new_count, ()
    if not is_counted(type(obj)):
        return NotImplemented
    if hasattr(obj, "blocks"):
        counts = [getattr(block, "refs", None) for block in obj.blocks]
        if any(count is not None for count in counts):
            make, arguments, *state = obj.__reduce_ex__(2)[:3]
            return make, arguments, (state, counts), None, None, fill_manager
    elif (count := getattr(obj, "__dict__", {}).get("_references")) is not None:
        make, arguments = obj.__reduce__()[:2]
        return make, arguments, count, None, None, fill_index
    return NotImplemented


def is_counted(kind: type) -> bool:
    """True if objects of a class may share memory under reference counts."""
    internals: Any = sys.modules.get(_INTERNALS)
    if internals is None or "pandas" not in kind.__module__:
        return False
    managers, pandas = sys.modules.get(_MANAGERS), sys.modules.get("pandas")
    names = (internals, "BlockManager"), (managers, "SingleBlockManager"), (pandas, "Index")
    return issubclass(kind, tuple(filter(None, (getattr(m, n, None) for m, n in names))))


def is_apart(obj: Any) -> bool:
    """True if it cannot be observed what this shares with others: from pandas 3 on, which always
    copies on write, unless it holds objects that may be changed in place."""
    pandas: Any = sys.modules.get("pandas")
    if not is_pandas(type(obj)) or int(pandas.__version__.partition(".")[0]) < 3:
        return False
    if isinstance(obj, pandas.DataFrame | pandas.Series):
        return all(block.dtype != object for block in obj._mgr.blocks)
    return isinstance(obj, pandas.Index) and bool(obj.dtype != object)


def places_of_indices(objects: Iterable[object]) -> set[int]:
    """Return the addresses at which the immutable memory of the indices among these begins."""
    index = getattr(sys.modules.get("pandas"), "Index", None)
    if index is None:  # in most notebooks, and called for every unit of every cell
        return set()
    values = (vars(obj).get("_data") for obj in objects if isinstance(obj, index))
    arrays = (getattr(value, "_ndarray", value) for value in values)
    interfaces = (getattr(array, "__array_interface__", None) for array in arrays)
    return {interface["data"][0] for interface in interfaces if interface is not None}


def is_pandas(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "pandas" and "pandas" in sys.modules


def new_count() -> Any:
    return importlib.import_module(_INTERNALS).BlockValuesRefs()


def fill_manager(manager: Any, state: tuple[list[Any], list[Any]]) -> None:
    states, counts = state
    for manager_state in states:  # a manager of several blocks has none
        manager.__setstate__(manager_state)
    for block, count in zip(manager.blocks, counts, strict=True):
        if count is not None:
            block.refs = count
            count.add_reference(block)


def fill_index(index: Any, count: Any) -> None:
    index._references = count
    count.add_index_reference(index)

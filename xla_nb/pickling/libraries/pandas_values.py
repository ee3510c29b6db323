"""What pandas objects share: memory that none of them may change for the others (copy-on-write).

pandas counts who has a block of memory in `BlockValuesRefs`, which it does not pickle. A parcel
keeps the memory shared, so without the count writing to `df` would change `y = df["label"]`. Counts
of one are kept as well: that others are made of a frame is no change to it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from typing import Any

_INTERNALS, _MANAGERS = "pandas._libs.internals", "pandas.core.internals.managers"


def reduced(obj: Any) -> Any:
    """A manager of blocks, an index or a count as a reducer's value; NotImplemented for others."""
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
    """Whether objects of a class may share memory, each in its own way."""
    internals: Any = sys.modules.get(_INTERNALS)
    if internals is None or "pandas" not in kind.__module__:
        return False
    managers, pandas = sys.modules.get(_MANAGERS), sys.modules.get("pandas")
    names = (internals, "BlockManager"), (managers, "SingleBlockManager"), (pandas, "Index")
    return issubclass(kind, tuple(filter(None, (getattr(m, n, None) for m, n in names))))


def is_apart(obj: Any) -> bool:
    """Whether nobody can tell what it shares with others: from pandas 3 on, which always copies on
    write, unless it has objects that may be changed by themselves."""
    pandas: Any = sys.modules.get("pandas")
    if not is_pandas(type(obj)) or int(pandas.__version__.partition(".")[0]) < 3:
        return False
    if isinstance(obj, pandas.DataFrame | pandas.Series):
        return all(block.dtype != object for block in obj._mgr.blocks)
    return isinstance(obj, pandas.Index) and bool(obj.dtype != object)


def places_of_indices(objects: Iterable[object]) -> set[int]:
    """Where the memory of the indices among these begins, which nobody changes."""
    index = getattr(sys.modules.get("pandas"), "Index", None)
    if index is None:  # as in most notebooks, for each unit of each cell
        return set()
    own = (vars(one).get("_data") for one in objects if isinstance(one, index))
    arrays = (getattr(one, "_ndarray", one) for one in own)
    held = (getattr(one, "__array_interface__", None) for one in arrays)
    return {one["data"][0] for one in held if one is not None}


def is_pandas(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "pandas" and "pandas" in sys.modules


def new_count() -> Any:
    return importlib.import_module(_INTERNALS).BlockValuesRefs()


def fill_manager(made: Any, state: tuple[list[Any], list[Any]]) -> None:
    own, counts = state
    for one in own:  # a manager of several blocks has none
        made.__setstate__(one)
    for block, count in zip(made.blocks, counts, strict=True):
        if count is not None:
            block.refs = count
            count.add_reference(block)


def fill_index(made: Any, count: Any) -> None:
    made._references = count
    count.add_index_reference(made)

"""Values as ranks receive them, and results as the notebook receives them."""

from __future__ import annotations

import functools
import os
import types
from collections.abc import Callable, Mapping
from typing import Any

from xla_nb.pickling import pickler, rebuild, results
from xla_nb.pickling.functions_and_classes import Live
from xla_nb.pickling.parcel import Packed, Parcel


def arrived(share: bool = False, **values: object) -> dict[str, Any]:
    """Send values without a notebook, and open them as a rank does."""
    return opened(pickler.pack(values, Live()), share=share)


def are_sent(names: Mapping[str, object]) -> None:
    """Mark the functions and classes among these values as sent by the notebook."""
    kinds = type, types.FunctionType, functools._lru_cache_wrapper
    for one in names.values():
        if isinstance(one, kinds) and not getattr(one, "__closure__", None):
            rebuild.numbered(one, id(one))


def returned(
    value: object,
    main: Mapping[str, object] = {},
    tell: Callable[[str], None] = lambda text: None,
) -> Any:
    """Send a result, and read it. `main` is the notebook's namespace, as sent to ranks."""
    are_sent(main)
    packed = results.pack_home(value, tell)
    return read(packed, main.__getitem__ if main else None)


def read(packed: Packed, resolve: Callable[[str], object] | None = None) -> Any:
    return opened(packed, resolve)[results.RESULT]


def opened(
    packed: Packed, resolve: Callable[[str], object] | None = None, share: bool = False
) -> dict[str, Any]:
    fd = packed.to_memfd(share)
    try:
        return Parcel(fd).open(resolve=resolve)
    finally:
        os.close(fd)

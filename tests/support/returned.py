"""A rank's result as the notebook gets it."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Mapping
from typing import Any

from xla_nb.pickling import results
from xla_nb.pickling.parcel import Packed, Parcel


def returned(
    value: object,
    main: Container[str] = (),
    tell: Callable[[str], None] = lambda text: None,
) -> Any:
    """Send a result, and read it. `main` are names that the notebook has; with their values where
    the result refers to them."""
    packed = results.pack_home(value, main, tell)
    return read(packed, main.__getitem__ if isinstance(main, Mapping) else None)


def read(packed: Packed, resolve: Callable[[str], object] | None = None) -> Any:
    fd = packed.to_memfd()
    try:
        return Parcel(fd).open(resolve=resolve)[results.RESULT]
    finally:
        os.close(fd)

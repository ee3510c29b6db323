"""Values as a rank gets them, and a rank's result as the notebook gets it."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Mapping
from typing import Any

from xla_nb.pickling import pickler, rebuild, results
from xla_nb.pickling.functions_and_classes import Live
from xla_nb.pickling.parcel import Packed, Parcel


def arrived(share: bool = False, **values: object) -> dict[str, Any]:
    """Send values of no notebook, and open them as a rank does."""
    return opened(pickler.pack(values, Live()), share=share)


def are_sent(names: Mapping[str, object]) -> None:
    """Have the classes among these values be ones that the notebook has sent."""
    for one in names.values():
        if isinstance(one, type):
            rebuild.opened_classes[id(one)] = one
            rebuild.take_number(one, id(one))


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
    return opened(packed, resolve)[results.RESULT]


def opened(
    packed: Packed, resolve: Callable[[str], object] | None = None, share: bool = False
) -> dict[str, Any]:
    fd = packed.to_memfd(share)
    try:
        return Parcel(fd).open(resolve=resolve)
    finally:
        os.close(fd)

"""What a process that a live rank spawns (a DataLoader's worker) finds in the rank's module.

It imports the program's file, which restores a parcel. A fresh rank's is the notebook's; a live
rank packs anew what cells have defined by now, with what that uses, each time that it spawns.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Mapping
from typing import Any

from xla_nb.protocol import parts
from xla_nb.protocol.live import Live
from xla_nb.protocol.parcel import Packed, Parcel
from xla_nb.protocol.pickling import pack
from xla_nb.rank import loader

_OURS = ("__", "_xla_nb")
_KEPT = 8


class Snapshots:
    """Those of one process. The newest few are kept: a process that was spawned a moment ago has
    still to open its own."""

    def __init__(self) -> None:
        self._taken: dict[str, int] = {}  # file descriptors by content, the newest last

    def take(self) -> None:
        """Let what is spawned next find what the module has now."""
        fd = packed(vars(sys.modules["__main__"])).to_memfd()
        content = Parcel(fd).digest()
        if content in self._taken:
            os.close(fd)
            fd = self._taken.pop(content)
        self._taken[content] = fd
        for old in list(self._taken)[:-_KEPT]:
            os.close(self._taken.pop(old))
        loader.use(fd)


def packed(namespace: Mapping[str, Any]) -> Packed:
    """The functions, classes and modules of a namespace and what they use; what cannot be pickled
    is left out."""
    held = {name: value for name, value in namespace.items() if not name.startswith(_OURS)}
    wanted = {name: value for name, value in held.items() if _is_definition(value)}

    def of(names: Mapping[str, Any]) -> Packed:
        return pack(names, Live(held, lambda code: code))

    try:
        return of(wanted)
    except Exception:
        return of(
            {name: value for name, value in wanted.items() if _can_be_packed(of, name, value)}
        )


def _can_be_packed(of: Any, name: str, value: object) -> bool:
    try:
        of({name: value})
    except Exception:
        return False
    return True


def _is_definition(value: object) -> bool:
    return isinstance(value, types.FunctionType | types.ModuleType) or (
        isinstance(value, type) and parts.is_made_here(value)
    )

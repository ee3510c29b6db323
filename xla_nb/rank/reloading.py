"""The user's own modules that the notebook has imported again, as `importlib.reload` and
%autoreload do: a live rank does the same."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Container, Mapping
from types import ModuleType
from typing import Any


class Reloads:
    """How far one rank has followed the notebook."""

    def __init__(self) -> None:
        self._done: dict[str, int] = {}

    def follow(self, counts: Mapping[str, int], in_place: Container[str] = ()) -> None:
        """Import again what the notebook has, by how often it had; what the rank has not imported
        yet it will find as it is then. Of modules `in_place`, functions and classes that there were
        get the new code. Raises what a module raises."""
        for name, count in counts.items():
            module = sys.modules.get(name)
            if module is not None and self._done.get(name) != count:
                if name in in_place:
                    _change(module)
                else:
                    importlib.reload(module)
            self._done[name] = count


def _change(module: ModuleType) -> None:
    """As IPython's %autoreload does it."""
    autoreload: Any = importlib.import_module("IPython.extensions.autoreload")
    autoreload.superreload(module, importlib.reload, {})

"""The user's own modules that the notebook has imported again, as `importlib.reload` and
%autoreload do: a live rank does the same."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any


class Reloads:
    """How far one rank has followed the notebook."""

    def __init__(self) -> None:
        self._done = 0
        self._old: dict[Any, Any] = {}  # what %autoreload remembers of former functions and classes

    def follow(self, reloads: Sequence[tuple[str, bool]]) -> None:
        """Import again what the notebook has, in its order, as far as it is not done; what the rank
        has not imported yet it will find as it is then. The functions and classes of those that
        were changed in place get the new code. Raises what a module raises."""
        for name, in_place in reloads[self._done :]:
            module = sys.modules.get(name)
            if module is not None and in_place:
                self._change(module)
            elif module is not None:
                importlib.reload(module)
            self._done += 1

    def _change(self, module: ModuleType) -> None:
        """As IPython's %autoreload does it."""
        autoreload: Any = importlib.import_module("IPython.extensions.autoreload")
        autoreload.superreload(module, importlib.reload, self._old)

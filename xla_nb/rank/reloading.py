"""The user's own modules that the notebook has imported again, as `importlib.reload` and
%autoreload do: a live rank does the same."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping


class Reloads:
    """How far one rank has followed the notebook."""

    def __init__(self) -> None:
        self._done: dict[str, int] = {}

    def follow(self, counts: Mapping[str, int]) -> None:
        """Import again what the notebook has, by how often it had; what the rank has not imported
        yet it will find as it is then. Raises what a module raises."""
        for name, count in counts.items():
            module = sys.modules.get(name)
            if module is not None and self._done.get(name) != count:
                importlib.reload(module)
            self._done[name] = count

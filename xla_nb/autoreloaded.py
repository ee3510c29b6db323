"""The user's modules that IPython's %autoreload has changed in place, by when it has read them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class Autoreloaded:
    """What one shell's %autoreload does, which may be loaded at any time."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._read: dict[str, float] = {}  # when the file was written that a module has

    def look(self) -> Iterator[str]:
        """The names of those that it has read again since the last look, and did not fail to."""
        magics = self._shell.magics_manager.registry.get("AutoreloadMagics")
        reloader = getattr(magics, "_reloader", None)
        times: dict[str, float] = dict(getattr(reloader, "modules_mtimes", {}))
        failed = set(getattr(reloader, "failed", {}).values())
        before, self._read = self._read, times
        for name, time in times.items():
            if before.get(name, time) != time and time not in failed:
                yield name

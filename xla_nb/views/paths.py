"""Paths as people read them."""

from __future__ import annotations

from pathlib import Path


def short(path: str) -> str:
    """A path as short as a shell takes it: relative to the notebook's folder, or with `~`."""
    for folder, short in ((_folder(), "."), (str(Path.home()), "~")):
        if len(folder) > 1 and path.startswith(f"{folder}/"):
            return f"{short}{path[len(folder) :]}"
    return path


def _folder() -> str:
    try:
        return str(Path.cwd())
    except OSError:  # it has been removed
        return ""

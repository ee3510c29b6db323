"""Paths as people read them."""

from __future__ import annotations

from pathlib import Path

from xla_nb import wording


def short(path: str) -> str:
    """A path as short as a shell takes it: relative to the notebook's folder, or with `~`. A very
    long one is cut in its middle: its end is what differs from others."""
    for folder, short in ((_folder(), "."), (str(Path.home()), "~")):
        if len(folder) > 1 and path.startswith(f"{folder}/"):
            path = f"{short}{path[len(folder) :]}"
            break
    return wording.without_middle(path, 400)


def _folder() -> str:
    try:
        return str(Path.cwd())
    except OSError:  # it has been removed
        return ""

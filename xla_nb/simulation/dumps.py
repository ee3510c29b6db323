"""Gives each rank files of its own where torch_xla writes down what it did.

On a TPU a process's files are told apart by its device's number, which is 0 in every process here,
or not at all: the profiles of a host's processes have the name of the host.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch_xla

_SAVED_GRAPHS = "XLA_SAVE_TENSORS_FILE"


def name_dumps(rank: int) -> None:
    """In a rank, before its runtime starts: graphs go to `FILE.RANK.0`, to whose name torch_xla
    appends the device's number; profiles to `HOST.RANK.xplane.pb` in the run's folder."""
    if name := os.environ.get(_SAVED_GRAPHS):
        os.environ[_SAVED_GRAPHS] = f"{name}.{rank}"
    profiler: Any = torch_xla._XLAC.profiler
    profiler.TslProfilerSessionWrapper = _named(profiler.TslProfilerSessionWrapper, rank)


def _named(session: Any, rank: int) -> Any:
    class Session(session):  # type: ignore[misc]
        """A profile, exported under the rank's name."""

        def export(self, xspace: bytes, folder: str) -> None:
            with tempfile.TemporaryDirectory(prefix="xla-nb-profile-") as own:
                super().export(xspace, own)
                for path in filter(Path.is_file, Path(own).rglob("*")):
                    name = re.sub(r"(\.\w+\.\w+(\.gz)?)$", rf".{rank}\1", path.name)
                    place = Path(folder) / path.relative_to(own).parent
                    place.mkdir(parents=True, exist_ok=True)
                    shutil.move(path, place / name)

    return Session

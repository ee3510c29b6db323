"""Limit the records of ended runs in a home, and remove the oldest beyond the limits.

A record stays while its run is in progress, and while a living process needs it (its `owner`). Of
the others the newest stay, within the home's limits. Several processes may tidy one home at once: a
record is first renamed, which only one of them can do, and then deleted.
"""

from __future__ import annotations

import contextlib
import shutil
from collections import Counter
from pathlib import Path

from xla_nb.record.files import Folder, Record, home, records

#: Ended runs that a home keeps: their number, and their total bytes.
RUNS, NBYTES = 20, 2 << 30
_REMOVED = ".removed-"  # the names of records that are being deleted


def tidy(folder: Folder = "runs") -> None:
    """Remove the oldest ended runs beyond the limits, and unended ones not touched for a week. Each
    group of live ranks keeps as many cells as the home keeps launches."""
    nbytes = 0
    with contextlib.suppress(OSError):  # there is no home yet, or it belongs to another user
        top = home() / folder
        for path in [*top.glob(f"{_REMOVED}*"), *top.glob(f"*/cells/{_REMOVED}*")]:  # cut short
            shutil.rmtree(path, ignore_errors=True)
        ended, removable = dict[Record, int](), list[Record]()
        launched = records(folder)
        for record in [*launched, *(cell for parent in launched for cell in parent.cells())]:
            with contextlib.suppress(FileNotFoundError):
                ended[record] = record.summary.stat().st_mtime_ns
            if record not in ended and record.is_lost():
                _remove(record)
        count = Counter[Path]()
        for record in sorted(ended, key=ended.__getitem__, reverse=True):
            if record.is_owned:
                nbytes += record.nbytes
                count[record.path.parent] += 1
            else:
                removable.append(record)
        for record in removable:
            count[record.path.parent] += 1
            nbytes += record.nbytes
            if count[record.path.parent] > RUNS or nbytes > NBYTES:
                _remove(record)


def _remove(record: Record) -> None:
    target = record.path.with_name(f"{_REMOVED}{record.path.name}")
    try:
        record.path.rename(target)
    except OSError:  # another process removed it
        return
    shutil.rmtree(target, ignore_errors=True)

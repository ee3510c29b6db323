"""Keep what a launched cell's module has bound, so that the notebook has what the ranks had.

A process of its own, forked from the job before the ranks, writes it to the record: no rank waits
for it, and none has changed anything yet.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xla_nb.linux import die_with_parent, name_process
from xla_nb.protocol import events, keeping
from xla_nb.protocol.channel import Sender
from xla_nb.protocol.order import Request
from xla_nb.record.files import Record, partial


def start(
    request: Request, namespace: Mapping[str, Any], made: Mapping[int, object], sender: Sender
) -> int:
    """Start the process; returns its id, to be waited for.

    `made` are the objects that came from the notebook, by their numbers in its parcel.
    """
    pid = os.fork()
    if pid == 0:
        try:
            die_with_parent()
            name_process("xla_nb-keeper")
            keep(request, namespace, made)
            sender.send(events.ModuleKept())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    return pid


def keep(request: Request, namespace: Mapping[str, Any], made: Mapping[int, object]) -> None:
    """Write the file; it is whole or absent."""
    path = Record(Path(request.record)).module_values
    values = {name: namespace[name] for name in request.keeps if name in namespace}
    named = {name: namespace[name] for name in request.as_source if name in namespace}
    packed = keeping.pack_kept(values, made, named)
    scratch = partial(path)
    fd = os.open(scratch, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        packed.write(fd)
    finally:
        os.close(fd)
    scratch.rename(path)

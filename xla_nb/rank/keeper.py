"""Keep what a launched cell's module has bound, so that the notebook has what the ranks had.

A process of its own, forked from the job before the ranks, writes it to the record: no rank waits
for it, and none has changed anything yet.
"""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xla_nb.linux import die_with_parent, name_process
from xla_nb.protocol import events, keeping
from xla_nb.protocol.changes import changed, inside
from xla_nb.protocol.channel import Sender
from xla_nb.protocol.order import Request
from xla_nb.protocol.parcel import Parcel
from xla_nb.rank import loader
from xla_nb.record.files import Record, partial
from xla_nb.wording import listed

_OURS = ("_xla_nb", "__xla_nb")


def start(request: Request, namespace: Mapping[str, Any], parcel: Parcel, sender: Sender) -> int:
    """Start the process; returns its id, to be waited for.

    The parcel has remembered what the notebook sent.
    """
    made = parcel.objects
    pid = os.fork()
    if pid == 0:
        try:
            die_with_parent()
            name_process("xla_nb-keeper")
            keep(request, namespace, made)
            sender.send(events.ModuleKept())
            if names := changes(parcel, loader.another_parcel(), namespace):
                sender.send(events.Notice(text=_told(request.label, names)))
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


def changes(parcel: Parcel, fresh: Parcel, namespace: Mapping[str, Any]) -> list[str]:
    """The names under which the notebook has something that its cell has changed on the ranks.

    `parcel` is what was opened, `fresh` the same, to be opened once more and compared.
    """
    now = {number: one for number, one in parcel.objects.items() if one is not namespace}
    came = {id(one) for one in now.values()}
    given = {n: v for n, v in namespace.items() if id(v) in came} | parcel.values
    given = {name: value for name, value in given.items() if not name.startswith(_OURS)}
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        fresh.remember = True
        fresh.open({})
    found = {id(now[number]) for number in changed(fresh.objects, now)}
    direct = {name for name, value in given.items() if id(value) in found}
    left = found - {id(given[name]) for name in direct}
    return sorted(direct | {name for name, value in given.items() if inside(value, left)})


def _told(label: str, names: list[str]) -> str:
    each = listed((f"`{name}`" for name in names), most=5)
    verb = "is" if len(names) == 1 else "are"
    return f"{label}: {each} {verb} changed on the ranks, not in the notebook"

"""Programs for a live rank: it receives them one after another over a socket, its line."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import pickle
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace

from xla_nb.live_ranks import sharing
from xla_nb.messages import channel, events
from xla_nb.messages.channel import Sender
from xla_nb.messages.orders import Order
from xla_nb.pickling.definition_table import Definitions
from xla_nb.pickling.parcel import Parcel
from xla_nb.pickling.rebuild import take_notices
from xla_nb.process_state.settings import unmoved
from xla_nb.program.imports import imported_as
from xla_nb.program.module_file import ModuleMap
from xla_nb.program.rank_cell import PREDEFINED
from xla_nb.rank import loader
from xla_nb.rank.program import Loaded
from xla_nb.wording import listed

_FORMER = "`{0}` shares data with the old {1}, which the notebook has re-sent; create `{0}` again"
_NAMES_PER_EVENT, _LONGEST = 64, 500  # most names in one event, and most characters of a name


class Cell(Loaded):
    """One program for a live rank, from its three file descriptors, which it closes. It runs in the
    namespace of `group`, the program with which the rank has begun.

    `handed`: when it was handed over, by `time.monotonic()` of this host.
    """

    def __init__(self, group: Loaded, events_fd: int, parcel_fd: int, order_fd: int) -> None:
        sender = Sender(socket.socket(fileno=events_fd))
        self._parcel = io.FileIO(parcel_fd)
        #: The module once it holds everything that the notebook has sent.
        self._before: dict[str, object] | None = None
        try:
            order: Order = pickle.loads(os.pread(order_fd, os.fstat(order_fd).st_size, 0))
        finally:
            os.close(order_fd)
        super().__init__(order.request, sender, group.namespace, group.table, own=group.own)
        self.handed = order.at
        assert order.request.turn is not None
        self.turn = order.request.turn

    def __enter__(self) -> Cell:
        return self

    def __exit__(self, *_: object) -> None:
        self.sender.sock.close()
        self._parcel.close()

    def tell_if_not_open(self, rank: int, why: str = "") -> None:
        """Report to the notebook if the rank may lack some of the values, so that it re-sends them.
        Called where interrupts are no longer raised: one may have prevented opening."""
        if self._before is None:
            self.sender.send(events.NotOpened(rank=rank, why=why))

    def open(self, definitions: Definitions) -> None:
        """Open the notebook's values in the module; `definitions` are those sent before.
        Raises Unopened, and what importing modules raises."""
        table = ModuleMap.parse(self.request.table)
        self.table.sources.update(table.sources)  # keeps those of earlier cells
        self.table = replace(table, sources=self.table.sources)
        _extend_path(self.request.sys_path)
        notices: list[str] = []
        imports = [name for name in table.imports if name not in sys.modules]
        with self._parcel as parcel:
            if imports or os.fstat(parcel.fileno()).st_size:
                with unmoved(lives=True):
                    notices = self._open_parcel(imports, definitions)
        for text in notices:
            self.sender.send(events.Notice(text=text))
        for text in take_notices():
            self.sender.send(events.Notice(text=text, once=True))
        for name in self.turn.remote - self.own:  # bound by another rank: drop the old value
            self.namespace.pop(name, None)
        for label, source in table.sources.items():
            loader.remember(label, source)
        self._before = dict(self.namespace)

    def _open_parcel(self, imports: Sequence[str], definitions: Definitions) -> list[str]:
        """Import modules and open the values sent. Returns notices for the user."""
        definitions.there = sys.modules.keys() | ()
        for name in imports:
            importlib.import_module(name)
        if not os.fstat(self._parcel.fileno()).st_size:
            return []
        # The notebook may have packed this before it knew what the rank has bound.
        rank_names, before = self.turn.remote | self.own, dict(self.namespace)
        parcel = Parcel(self._parcel.fileno())
        sent = parcel.open(self.namespace, table=definitions, but=rank_names)
        return _former_notices(before, self.namespace, sent.keys() - rank_names, self.own)

    def tell_names(self, rank: int) -> None:
        """Report to the notebook which names of the module the program has bound or deleted."""
        if self._before is None:
            return
        before, now = self._before, self.namespace
        changed = {name for name, value in now.items() if before.get(name, self) is not value}
        bound = changed | (self.bound & now.keys())
        deleted = before.keys() - now.keys()
        self._before = None
        self.own.update(name for name in bound if isinstance(name, str))
        self.own.difference_update(deleted)
        for names in _in_chunks(bound):
            imported = {name: path for name in names if (path := imported_as(now[name]))}
            self.sender.send(events.NamesBound(rank=rank, bound=names, imported=imported))
        for names in _in_chunks(deleted):
            self.sender.send(events.NamesBound(rank=rank, bound=(), deleted=names))


def _former_notices(
    before: Mapping[str, object], now: Mapping[str, object], sent: Set[str], own: Set[str]
) -> list[str]:
    """Notices for the rank's `own` values that share data with old values which the notebook has
    `sent` anew and no longer has."""
    former = {n for n in filter(_is_cell_name, sent & before.keys()) if before[n] is not now[n]}
    if not (former and own):
        return []
    sent_parts = sharing.held([now[name] for name in sent])
    old_parts = {name: sharing.held([before[name]]) - sent_parts for name in sorted(former)}
    notices: list[str] = []
    for name in sorted(filter(_is_cell_name, own & now.keys())) if any(old_parts.values()) else ():
        data = sharing.held([now[name]])
        if shared := [f"`{old}`" for old, parts in old_parts.items() if not data.isdisjoint(parts)]:
            notices.append(_FORMER.format(name, listed(shared)))
    return notices


def _in_chunks(names: Iterable[object]) -> Iterator[tuple[str, ...]]:
    """The names that the cell has bound, sorted, in chunks that fit one event."""
    selected = sorted(name for name in names if isinstance(name, str) and _is_cell_name(name))
    for start in range(0, len(selected), _NAMES_PER_EVENT):
        yield tuple(selected[start : start + _NAMES_PER_EVENT])


def _extend_path(folders: Sequence[str]) -> None:
    """Add folders that the notebook has added to `sys.path`, at the same positions."""
    for position, folder in enumerate(folders):
        if folder not in sys.path:
            sys.path.insert(position, folder)
            importlib.invalidate_caches()


def _is_cell_name(name: str) -> bool:
    """Whether a cell has bound the name, and code can use it."""
    if name.startswith(("__", "_xla_nb")) or name in PREDEFINED:
        return False
    return name.isidentifier() and len(name) <= _LONGEST


def following(line: socket.socket, group: Loaded) -> Cell | None:
    """Wait for and return the next program; None if there will be no more."""
    message, fds = channel.take(line, 16, 3)
    return Cell(group, *fds) if message else None


def connect(control: socket.socket, rank: int) -> socket.socket:
    """Open the calling rank's line, over which it receives programs, and send the other end to the
    process that starts them."""
    own_end, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with other_end, contextlib.suppress(OSError):  # no receiver: the line has ended, then
        socket.send_fds(control, [b"%d" % rank], [other_end.fileno()])
    return own_end

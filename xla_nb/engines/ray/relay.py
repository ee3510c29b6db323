"""A run on the hosts of a cluster: starts it there, and brings its files and events home.

Files are written to the record before the events that refer to them are passed on.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from xla_nb.engines.local import NO_GROUP
from xla_nb.engines.ray import faults
from xla_nb.engines.ray.cluster import ActorGroup, Wish
from xla_nb.engines.ray.host import HostNews, Part
from xla_nb.engines.ray.mirror import Mirror, Unwritable
from xla_nb.errors import LaunchError, UsageError
from xla_nb.protocol import events
from xla_nb.protocol.order import HostGroup, Request
from xla_nb.wording import several

_LOST = 5.0  # seconds that a host may be unreachable
_IMPORT = 300.0  # seconds for hosts to import the ranks' packages and start the ranks
_SILENT = 30.0  # seconds for an answer, which a host gives every second
_INLINE = 100_000  # bytes of values sent with the call; larger ones go through the object store
_BLOCK = 8 << 20  # bytes of a log to fetch at a time
_RANK_STARTED = b'"RankStarted"'

T = TypeVar("T")


class HostGone(LaunchError):
    """A held host does not answer."""


class _Unheard(Exception):
    """The notebook has closed the socket of events."""


@dataclass
class Launch:
    """What the notebook has sent: `env` are the variables that were set there."""

    wish: Wish
    request: Request
    env: Mapping[str, str]
    program: dict[str, bytes]
    events: socket.socket
    parcel: int


class Relay:
    """A run on its hosts, and what they send home. A program of live ranks has their seats:
    `live`."""

    def __init__(self, launch: Launch, group: ActorGroup, live: Relay | None = None) -> None:
        self.group = group
        self.run = launch.request.run
        self.forgotten = False
        self._events = launch.events
        self._mirror = Mirror(Path(launch.request.record))
        self._live = live
        self._seats: list[int] = []  # the indices of the actors in seat order
        self._sending = asyncio.Lock()
        self._left = 0
        self._over: set[int] = set()  # the actors on which it has ended
        self._ranks: dict[int, set[int]] = {}  # by actor

    @property
    def _names(self) -> list[str]:
        return [self.group.names[seat] for seat in self._seats]

    async def start(self, launch: Launch) -> None:
        """Start it on all hosts, or on none. Raises LaunchError or UsageError."""
        try:
            await self._start(launch)
        except (LaunchError, UsageError):
            self.forget()
            raise
        except Exception as problem:  # Ray has a dozen errors for a dead host
            self.forget()
            self.group.broken = True
            raise HostGone(faults.unplaced(str(problem))) from problem
        self.group.fresh = False

    async def _start(self, launch: Launch) -> None:
        parts = await self._parts(launch)
        parcel = await asyncio.to_thread(_stored, launch.parcel)
        hosts = several(len(parts), "host")
        launch.wish.tell(f"importing the ranks' packages on {hosts}, once per session …")
        calls = [
            self.group.actors[seat].start.remote(part, parcel)
            for seat, part in zip(self._seats, parts, strict=True)
        ]
        answers = await asyncio.wait_for(_all(calls), _IMPORT)
        for seat, refusal in zip(list(self._seats), answers, strict=True):
            if refusal == NO_GROUP and self._live and not self._live.has_any(launch.request, seat):
                self._seats.remove(seat)  # its ranks have died just now
            elif refusal:
                name = self.group.names[seat]
                raise LaunchError(f"{name}: {refusal}" if len(parts) > 1 else refusal)

    async def _parts(self, launch: Launch) -> list[Part]:
        """Each host's part of the run, in seat order."""
        group = self.group
        hosts = group.hosts_in_order()
        if self._live is not None:
            self._seats = self._live.seats_for(launch.request)
            return [
                Part(name, launch.request, HostGroup(len(self._seats), index), launch.program)
                for index, name in enumerate(self._names)
            ]
        seats = group.seats(launch.wish.slices)
        self._seats = [hosts.index(seat.host) for seat in seats]
        address = None
        if len(seats) > 1:
            first = group.actors[self._seats[0]]
            address = await asyncio.wait_for(_awaited(first.hold_port.remote(self.run)), _SILENT)
        return [
            Part(
                seat.host.name,
                launch.request,
                HostGroup(len(seats), index, address),
                launch.program,
                env=launch.env,
                sets=seat.variables,
            )
            for index, seat in enumerate(seats)
        ]

    def seats_for(self, request: Request) -> list[int]:
        """The actors whose ranks still live, to which a program goes. Raises LaunchError where one
        that has none is to run it."""
        if any(self.has_any(request, seat) for seat in self._over):
            raise LaunchError(NO_GROUP)
        return [seat for seat in self._seats if seat not in self._over]

    def has_any(self, request: Request, seat: int) -> bool:
        """Whether an actor had any of the ranks that are to run a program."""
        turn = request.turn
        return turn is None or any(map(turn.is_for, self._ranks.get(seat, ())))

    async def follow(self) -> None:
        """Follow every host until its end or loss; a run that cannot be followed is ended."""
        self._left = len(self._seats)
        try:
            await self._send(events.HostsPlaced(names=tuple(self._names)))
            async with asyncio.TaskGroup() as following:
                for index in range(len(self._seats)):
                    following.create_task(self._follow(index))
        except* _Unheard:
            self.forget()
        except* Unwritable as full:
            self.forget()
            with contextlib.suppress(_Unheard):
                await self._send(events.Notice(text=str(full.exceptions[0])))

    async def _follow(self, index: int) -> None:
        name, seat = self._names[index], self._seats[index]
        try:
            await self._take_all(seat)
        except (_Unheard, Unwritable):  # not the host's fault
            raise
        except Exception as problem:
            self.group.broken = True
            await self._send(events.HostLost(host=name, why=faults.why_lost(str(problem))))
        self._over.add(seat)
        self._left -= 1
        if self._left == 1:
            self._release_first_host()

    def _release_first_host(self) -> None:
        """Tell host 0, which may serve the others (jax_world.Coordinator) and waits for them, that
        it is alone; no matter if it has already ended."""
        self.group.actors[self._seats[0]].alone.remote(self.run)

    async def _take_all(self, seat: int) -> None:
        import ray

        actor = self.group.actors[seat]
        seen, silent = 0, 0.0
        while True:
            try:
                news: HostNews = await asyncio.wait_for(
                    _awaited(actor.news.remote(self.run, seen)), _SILENT
                )
            except ray.exceptions.ActorUnavailableError:
                silent = silent or time.monotonic()
                if time.monotonic() - silent > _LOST:
                    raise
                await asyncio.sleep(0.2)
                continue
            seen, silent = news.number, 0.0
            for text in self._mirror.take(news.files):
                await self._send(events.Notice(text=text))
            for event in news.events:
                if _RANK_STARTED in event:
                    self._ranks.setdefault(seat, set()).add(_rank_of(event))
                await self._send_encoded(event)
            if news.over:
                return

    async def _send(self, event: events.Event) -> None:
        await self._send_encoded(events.encode(event))

    async def _send_encoded(self, event: bytes) -> None:
        """Raises _Unheard."""
        try:
            async with self._sending:  # asyncio allows one waiting writer per socket
                await asyncio.get_running_loop().sock_sendall(self._events, event)
        except (BrokenPipeError, ConnectionResetError) as gone:
            raise _Unheard from gone

    # ------------------------------------------------------------ from the notebook

    def signal(self, pids: dict[str, list[int]], number: int) -> None:
        for name, numbers in pids.items():
            if name in self.group.names:
                self._actor(name).signal.remote(self.run, numbers, number)

    def kill(self) -> None:
        for actor in self.group.actors:
            actor.kill.remote(self.run)

    def forget(self) -> None:
        """End a run that nobody follows; its hosts drop it."""
        self.forgotten = True
        for actor in self.group.actors:
            actor.forget.remote(self.run)

    def end(self) -> None:
        """Live ranks get nothing more."""
        for actor in self.group.actors:
            actor.end.remote(self.run)

    def ask(self) -> None:
        for actor in self.group.actors:
            actor.ask.remote(self.run)

    async def fetch(self, host: str, file: str, into: int) -> None:
        """Write a host's file to `into` in blocks, each after its size; an empty block marks the
        end."""
        with open(into, "wb", buffering=0) as pipe:  # a descriptor, not a path
            if host not in self.group.names or self.group.broken:
                return
            for offset in itertools.count(0, _BLOCK):
                read = self._actor(host).read.remote(self.run, file, offset, _BLOCK)
                block: bytes = await asyncio.wait_for(_awaited(read), faults.PATIENCE)
                await asyncio.to_thread(_write, pipe.fileno(), _sized(block))
                if len(block) < _BLOCK:  # the end of the file, even if it is still growing
                    await asyncio.to_thread(_write, pipe.fileno(), _sized(b""))
                    return

    def _actor(self, name: str) -> Any:
        return self.group.actors[self.group.names.index(name)]


def _stored(parcel: int) -> Any:
    """The values: as bytes, or large ones once for all hosts in the object store."""
    import ray

    size = os.fstat(parcel).st_size
    content = os.pread(parcel, size, 0) if size <= _INLINE else _whole(parcel, size)
    return content if size <= _INLINE else ray.put(content)


def _whole(parcel: int, size: int) -> bytes:
    with open(parcel, "rb", closefd=False) as file:  # a descriptor, not a path
        file.seek(0)
        return file.read(size)


def _rank_of(event: bytes) -> int:
    started = events.decode(event)
    return started.rank if isinstance(started, events.RankStarted) else -1


def _sized(block: bytes) -> bytes:
    return len(block).to_bytes(4, "big") + block


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


async def _awaited(reference: Awaitable[T]) -> T:
    return await reference


async def _all(references: Sequence[Awaitable[T]]) -> list[T]:
    return list(await asyncio.gather(*map(_awaited, references)))

"""A run on the hosts of a cluster: started there, and what they tell brought home.

The rule: what has arrived is in the record before an event that speaks of it is passed on.
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

from xla_nb.engines.ray import faults
from xla_nb.engines.ray.cluster import ActorGroup, Wish
from xla_nb.engines.ray.host import HostNews, Part
from xla_nb.engines.ray.mirror import Mirror, Unwritable
from xla_nb.errors import LaunchError, UsageError
from xla_nb.protocol import events
from xla_nb.protocol.order import HostGroup, Request
from xla_nb.wording import several

_LOST = 5.0  # seconds that a host may be out of reach
_IMPORT = 300.0  # seconds that hosts may take to import what the ranks need, and to start them
_SILENT = 30.0  # seconds that it may take for an answer, which it gives each second
_INLINE = 100_000  # bytes of values that go with the call; more go by the object store
_BLOCK = 8 << 20  # bytes of a log that are fetched at once

T = TypeVar("T")


class HostGone(LaunchError):
    """A host that was held for launches does not answer."""


class _Unheard(Exception):
    """The notebook does not listen any more."""


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
    """A run on its hosts, and the way home of what they tell."""

    def __init__(self, launch: Launch, group: ActorGroup) -> None:
        self.group = group
        self.run = launch.request.run
        self._events = launch.events
        self._mirror = Mirror(Path(launch.request.record))
        self._seats: list[int] = []  # the actors in the order of the run's hosts
        self._sending = asyncio.Lock()
        self._left = 0

    @property
    def _names(self) -> list[str]:
        return [self.group.names[seat] for seat in self._seats]

    async def start(self, launch: Launch) -> None:
        """On all hosts at once, or on none. Raises LaunchError."""
        try:
            await self._start(launch)
        except (LaunchError, UsageError):
            self.forget()
            raise
        except Exception as problem:  # Ray has a dozen kinds for a host that is gone
            self.forget()
            self.group.broken = True
            raise HostGone(faults.unplaced(str(problem))) from problem
        self.group.fresh = False

    async def _start(self, launch: Launch) -> None:
        parts = await self._parts(launch)
        parcel = await asyncio.to_thread(_stored, launch.parcel)
        there = several(len(parts), "host")
        launch.wish.tell(f"importing what the ranks need on {there}, once for this session …")
        calls = [
            self.group.actors[seat].start.remote(part, parcel)
            for seat, part in zip(self._seats, parts, strict=True)
        ]
        answers = await asyncio.wait_for(_all(calls), _IMPORT)
        refused = [
            f"{name}: {said}" if len(parts) > 1 else said
            for name, said in zip(self._names, answers, strict=True)
            if said
        ]
        if refused:
            raise LaunchError(refused[0])

    async def _parts(self, launch: Launch) -> list[Part]:
        """What each host is to do, in the order of slices and of hosts in them."""
        group = self.group
        hosts = group.hosts_in_order()
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

    async def follow(self) -> None:
        """Until every host has told all, or is lost; a run that cannot be followed is ended."""
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
        name, actor = self._names[index], self.group.actors[self._seats[index]]
        try:
            await self._take_all(actor)
        except (_Unheard, Unwritable):  # which is no fault of the host's
            raise
        except Exception as problem:
            self.group.broken = True
            await self._send(events.HostLost(host=name, why=faults.why_lost(str(problem))))
        self._left -= 1
        if self._left == 1:
            self._tell_the_first()

    def _tell_the_first(self) -> None:
        """Host 0 may serve the others (jax_world.Coordinator) and go only after them. It is the
        one that is left, or has gone by itself."""
        self.group.actors[self._seats[0]].alone.remote(self.run)

    async def _take_all(self, actor: Any) -> None:
        import ray

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
            self._mirror.take(news.files)
            for event in news.events:
                await self._send_encoded(event)
            if news.over:
                return

    async def _send(self, event: events.Event) -> None:
        await self._send_encoded(events.encode(event))

    async def _send_encoded(self, event: bytes) -> None:
        """Raises _Unheard."""
        try:
            async with self._sending:  # of two that wait for a socket, asyncio forgets the first
                await asyncio.get_running_loop().sock_sendall(self._events, event)
        except (BrokenPipeError, ConnectionResetError) as gone:
            raise _Unheard from gone

    # ------------------------------------------------------------ from the notebook

    def interrupt(self, pids: dict[str, list[int]]) -> None:
        for name, numbers in pids.items():
            if name in self.group.names:
                self._actor(name).interrupt.remote(self.run, numbers)

    def kill(self) -> None:
        for actor in self.group.actors:
            actor.kill.remote(self.run)

    def forget(self) -> None:
        """End a run that nobody follows; its hosts drop it."""
        self.forgotten = True
        for actor in self.group.actors:
            actor.forget.remote(self.run)

    def ask(self) -> None:
        for actor in self.group.actors:
            actor.ask.remote(self.run)

    async def fetch(self, host: str, file: str, into: int) -> None:
        """Write a file as it lies on its host to `into`, in blocks, each behind its size; an empty
        one says that this was all."""
        with open(into, "wb", buffering=0) as pipe:  # a descriptor, not a path
            if host not in self.group.names or self.group.broken:
                return
            for offset in itertools.count(0, _BLOCK):
                read = self._actor(host).read.remote(self.run, file, offset, _BLOCK)
                block: bytes = await asyncio.wait_for(_awaited(read), faults.PATIENCE)
                await asyncio.to_thread(_write, pipe.fileno(), _sized(block))
                if len(block) < _BLOCK:  # the file's end, though it may grow meanwhile
                    await asyncio.to_thread(_write, pipe.fileno(), _sized(b""))
                    return

    def _actor(self, name: str) -> Any:
        return self.group.actors[self.group.names.index(name)]


def _stored(parcel: int) -> Any:
    """The values: as they are, or once for all hosts in the object store."""
    import ray

    size = os.fstat(parcel).st_size
    content = os.pread(parcel, size, 0) if size <= _INLINE else _whole(parcel, size)
    return content if size <= _INLINE else ray.put(content)


def _whole(parcel: int, size: int) -> bytes:
    with open(parcel, "rb", closefd=False) as file:  # a descriptor, not a path
        file.seek(0)
        return file.read(size)


def _sized(block: bytes) -> bytes:
    return len(block).to_bytes(4, "big") + block


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


async def _awaited(reference: Awaitable[T]) -> T:
    return await reference


async def _all(references: Sequence[Awaitable[T]]) -> list[T]:
    return list(await asyncio.gather(*map(_awaited, references)))

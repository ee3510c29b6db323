"""The process that is the cluster's client; the notebook's kernel sends it requests.

It has one event loop, which nothing may block, and replies to every launch. It starts runs on hosts
and brings their files and events to the notebook: bytes are in the record before the events that
followed them are passed on. When the control socket closes, everything ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import json
import os
import pickle
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xla_nb.engines.local import NO_GROUP
from xla_nb.engines.ray import faults
from xla_nb.engines.ray.files import Copies
from xla_nb.engines.ray.host import HostNews, Part
from xla_nb.engines.ray.placement import ActorGroup, Cluster, Unreachable, Wish
from xla_nb.errors import LaunchError, XlaNbError
from xla_nb.linux import name_process, watch_parent
from xla_nb.messages import channel, events
from xla_nb.messages.orders import HostGroup, Request
from xla_nb.topology.chips import asks_to_simulate
from xla_nb.wording import several

_LOST = 5.0  # seconds that a host may be unreachable
_IMPORT = 300.0  # seconds for hosts to import the ranks' packages and start the ranks
_SILENT = 30.0  # seconds for an answer, which a host sends every second


# ---------------------------------------------------------------- one run


class _Undelivered(Exception):
    """The notebook has closed the socket of events (no text), or cannot write the record (the text
    says why)."""


@dataclass
class Launch:
    """A launch sent by the notebook; `env` are the variables that were set there."""

    wish: Wish
    request: Request
    env: Mapping[str, str]
    program: dict[str, bytes]
    events: socket.socket
    parcel: int


class FollowedRun:
    """A run on its hosts, and the news that they send. For a program of live ranks, `live` is the
    run of the ranks, whose seats it uses."""

    def __init__(self, launch: Launch, group: ActorGroup, live: FollowedRun | None = None) -> None:
        self.group = group
        self.run = launch.request.run
        self._events = launch.events
        self._copies = Copies(Path(launch.request.record))
        self._live = live
        self._seats: list[int] = []  # the indices of the actors in seat order
        self._send_lock = asyncio.Lock()
        self._over: set[int] = set()  # the actors on which it has ended

    async def start(self, launch: Launch) -> None:
        """Start it on all hosts, or on none. Raises LaunchError or UsageError."""
        try:
            await self._start(launch)
        except BaseException as problem:
            self.call("forget")
            if isinstance(problem, XlaNbError) or not isinstance(problem, Exception):
                raise
            self.group.broken = True  # Ray has a dozen errors for a dead host
            if self._live is not None:
                why = faults.why_lost(str(problem))
                raise LaunchError(f"A host of the live ranks does not answer: {why}.") from problem
            raise LaunchError(faults.unplaced(str(problem))) from problem

    async def _start(self, launch: Launch) -> None:
        parts = await self._make_parts(launch)
        parcel = await asyncio.to_thread(_store, launch.parcel)
        hosts = several(len(parts), "host")
        launch.wish.tell(f"importing the ranks' packages on {hosts}, once per session …")
        calls = [
            self.group.actors[seat].start.remote(part, parcel)
            for seat, part in zip(self._seats, parts, strict=True)
        ]
        answers = await asyncio.wait_for(asyncio.gather(*calls), _IMPORT)
        for seat, refusal in zip(self._seats, answers, strict=True):
            if refusal:
                name = self.group.names[seat]
                raise LaunchError(f"{name}: {refusal}" if len(parts) > 1 else refusal)

    async def _make_parts(self, launch: Launch) -> list[Part]:
        """The hosts' parts of the run, in seat order."""
        group, address = self.group, None
        variables: dict[int, Mapping[str, str]] = {}
        if self._live is not None:
            # The notebook gives cells only to living ranks: hosts that are over have none.
            self._seats = [seat for seat in self._live._seats if seat not in self._live._over]
        else:
            seats = group.seats(launch.wish.slices)
            variables = {group.machines.index(seat.host): seat.variables for seat in seats}
            self._seats = [*variables]
            if len(seats) > 1:
                call = group.actors[self._seats[0]].hold_port.remote(self.run)
                address = await asyncio.wait_for(call, _SILENT)
        return [
            Part(
                group.names[seat],
                launch.request,
                HostGroup(len(self._seats), index, address),
                launch.program,
                env=launch.env,
                sets=variables.get(seat, {}),
            )
            for index, seat in enumerate(self._seats)
        ]

    async def follow(self) -> None:
        """Follow every host until it ends or is lost; end a run that cannot be followed."""
        try:
            names = tuple(self.group.names[seat] for seat in self._seats)
            await self._send(events.HostsPlaced(names=names))
            async with asyncio.TaskGroup() as following:
                for seat in self._seats:
                    following.create_task(self._follow(seat))
        except* _Undelivered as failures:
            self.call("forget")
            with contextlib.suppress(_Undelivered):
                if message := str(failures.exceptions[0]):
                    await self._send(events.Notice(text=message))

    async def _follow(self, seat: int) -> None:
        try:
            await self._forward_news(seat)
        except _Undelivered:  # not the host's fault
            raise
        except Exception as problem:
            self.group.broken = True
            why = faults.why_lost(str(problem))
            await self._send(events.HostLost(host=self.group.names[seat], why=why))
        self._over.add(seat)
        if len(self._over) == len(self._seats) - 1:
            # Host 0 may serve the others (jax_world.Coordinator), so it waits for them.
            self.group.actors[self._seats[0]].alone.remote(self.run)

    async def _forward_news(self, seat: int) -> None:
        import ray

        actor = self.group.actors[seat]
        seen, silent_since = 0, 0.0
        while True:
            try:
                call = actor.news.remote(self.run, seen)
                news: HostNews = await asyncio.wait_for(call, _SILENT)
            except ray.exceptions.ActorUnavailableError:
                silent_since = silent_since or time.monotonic()
                if time.monotonic() - silent_since > _LOST:
                    raise
                await asyncio.sleep(0.2)
                continue
            seen, silent_since = news.number, 0.0
            try:
                notice = self._copies.take(news.files)
            except OSError as problem:
                raise _Undelivered(
                    "Could not write the ranks' results on the notebook's machine: "
                    f"{problem}. The run was ended. Free space on that disk, or set XLA_NB_HOME "
                    "to a folder with space."
                ) from problem
            if notice:
                await self._send(events.Notice(text=notice))
            for event in news.events:
                await self._send(event)
            if news.over:
                return

    async def _send(self, event: events.Event | bytes) -> None:
        """Send an event, encoded or not. Raises _Unheard."""
        data = event if isinstance(event, bytes) else events.encode(event)
        try:
            async with self._send_lock:  # asyncio allows one waiting writer per socket
                await asyncio.get_running_loop().sock_sendall(self._events, data)
        except (BrokenPipeError, ConnectionResetError) as problem:
            raise _Undelivered from problem

    def signal(self, pids: dict[str, list[int]], number: int) -> None:
        for name, actor in zip(self.group.names, self.group.actors, strict=True):
            if name in pids:
                actor.signal.remote(self.run, pids[name], number)

    def call(self, method: str) -> None:
        """Call a method of all hosts for this run, without waiting."""
        for actor in self.group.actors:
            getattr(actor, method).remote(self.run)


def _store(parcel: int) -> Any:
    """Put the values into the object store, once for all hosts."""
    import ray

    with open(parcel, "rb", closefd=False) as file:  # a descriptor, not a path
        file.seek(0)
        return ray.put(file.read(os.fstat(parcel).st_size))


# ---------------------------------------------------------------- the process


class Driver:
    """Serves requests from one control socket: launches, and control of runs."""

    def __init__(self, control: socket.socket, parent: int, address: str) -> None:
        self._control = control
        self._parent = parent
        self._cluster = Cluster(address)
        self._runs: dict[str, FollowedRun] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._launch_lock = asyncio.Lock()  # one launch at a time chooses hosts

    async def serve(self) -> None:
        """Serve until the notebook closes the control socket, or ends."""
        loop = asyncio.get_running_loop()
        closed = asyncio.Event()
        loop.add_reader(self._control, self._receive, closed)
        loop.add_reader(self._parent, closed.set)
        releasing = loop.create_task(self._cluster.release_idle())
        await closed.wait()
        loop.remove_reader(self._control)
        loop.remove_reader(self._parent)
        for task in [*self._tasks.values(), releasing]:
            task.cancel()
        await self._cluster.close()

    def _receive(self, closed: asyncio.Event) -> None:
        message, fds = channel.take(self._control, 1 << 16, 4)
        if not message:
            closed.set()
            return
        request = json.loads(message)
        run = self._runs.get(request.get("run", ""))
        match request["do"]:
            case "launch":
                number = request["id"]
                task = asyncio.get_running_loop().create_task(self._launch(number, fds))
                self._tasks[number] = task
                task.add_done_callback(lambda _: self._tasks.pop(number, None))
            case "abandon":
                if request["id"] in self._tasks:
                    self._tasks[request["id"]].cancel()
            case "signal" if run is not None:
                run.signal(request["pids"], request["number"])
            case "kill" | "ask" | "end" if run is not None:
                run.call(request["do"])

    async def _launch(self, number: int, fds: list[int]) -> None:
        """Start a run and follow it; reply to any failure, since the kernel waits for a reply."""
        events_fd, parcel_fd, request_fd = fds
        with (
            socket.socket(fileno=events_fd) as sock,
            open(parcel_fd, "rb") as parcel,  # noqa: PTH123 # a descriptor, not a path
            open(request_fd, "rb") as file,  # noqa: PTH123 # likewise
        ):
            try:
                file.seek(0)
                request, env, program = pickle.load(file)
                sock.setblocking(False)
                cpu = asks_to_simulate({**env, **request.user_env})
                tell = functools.partial(self._tell, number)
                wish = Wish(request.hosts, request.slices, request.wait, tell, cpu)
                launch = Launch(wish, request, env, program, sock, parcel.fileno())
                await self._run(number, launch)
            except XlaNbError as problem:
                # The kernel starts a new process unless other requests still use this connection.
                spent = isinstance(problem, Unreachable) and self._tasks.keys() == {number}
                self._reply(id=number, refused=str(problem), spent=spent)
            except Exception as problem:
                self._reply(id=number, refused=faults.unplaced(str(problem)))
                raise
        gc.collect()  # frees references to Ray's objects

    def _tell(self, number: int, message: str) -> None:
        self._reply(id=number, waiting=message)

    async def _run(self, number: int, launch: Launch) -> None:
        """Start on held or new hosts, a program of live ranks on theirs; follow it to its end."""
        turn = launch.request.turn
        if turn is not None and turn.group not in self._runs:
            raise LaunchError(NO_GROUP)
        live = self._runs[turn.group] if turn is not None else None
        async with self._launch_lock:
            group = live.group if live else await self._cluster.hosts(launch.wish)
            group.runs.add(launch.request.run)
        run = self._runs[launch.request.run] = FollowedRun(launch, group, live)
        try:
            await run.start(launch)
            try:
                self._reply(id=number, done=True)
                await run.follow()
            except asyncio.CancelledError:  # the launch was abandoned
                run.call("forget")
                raise
        finally:
            # Forget a run that is over; release its hosts if one is lost.
            self._runs.pop(run.run, None)
            group.runs.discard(run.run)
            group.used = time.monotonic()
            if group.broken and not group.runs:
                await self._cluster.release(group)

    def _reply(self, **reply: Any) -> None:
        """Reply to the kernel, which reads while it waits; `_receive` notices that it is gone."""
        with contextlib.suppress(OSError):
            self._control.send(json.dumps(reply).encode())


def main(fd: int, parent: int, address: str) -> None:
    """Entry point of the process: `fd` is the control socket, `parent` the notebook's pid."""
    parent_fd = watch_parent(parent)
    if parent_fd is None:
        return
    name_process("xla_nb-ray")
    control = socket.socket(fileno=fd)
    control.setblocking(False)

    async def serve() -> None:
        await Driver(control, parent_fd, address).serve()
        os._exit(0)  # asyncio would wait for threads blocked on a dead cluster

    asyncio.run(serve())

"""The process that is the cluster's client; the notebook's kernel sends it requests.

One event loop, which nothing may block, and a reply to every launch and look. When the control
socket closes, everything ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import pickle
import socket
import time
from collections.abc import Coroutine
from typing import Any

from xla_nb.engines.local import NO_GROUP
from xla_nb.engines.ray import faults
from xla_nb.engines.ray.cluster import Cluster, Unreachable, Wish
from xla_nb.engines.ray.relay import HostGone, Launch, Relay
from xla_nb.errors import LaunchError, XlaNbError
from xla_nb.linux import name_process, watch_parent
from xla_nb.protocol import channel
from xla_nb.topology.chips import asks_to_simulate


class Driver:
    """Serves requests from one control socket: launches, looks, and control of runs."""

    def __init__(self, control: socket.socket, parent: int, address: str) -> None:
        self._control = control
        self._parent = parent
        self._cluster = Cluster(address)
        self._relays: dict[str, Relay] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._others: set[asyncio.Task[None]] = set()
        self._order = asyncio.Lock()  # one launch at a time chooses hosts
        self._replies: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def serve(self) -> None:
        """Serve until the notebook has closed the control socket, or has ended."""
        loop = asyncio.get_running_loop()
        closed = loop.create_future()
        loop.add_reader(self._control, self._receive, closed)
        loop.add_reader(self._parent, _set, closed)
        self._spawn(self._cluster.release_idle())
        self._spawn(self._send_replies())
        await closed
        loop.remove_reader(self._control)
        loop.remove_reader(self._parent)
        for task in [*self._tasks.values(), *self._others]:
            task.cancel()
        await self._cluster.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._others.add(task)
        task.add_done_callback(self._others.discard)

    def _receive(self, closed: asyncio.Future[None]) -> None:
        message, fds = channel.take(self._control, 1 << 16, 4)
        if not message:
            _set(closed)
            return
        request = json.loads(message)
        match request["do"]:
            case "launch":
                self._begin(request["id"], self._launch(request, fds))
            case "look":
                self._begin(request["id"], self._look(request, *fds))
            case "abandon":
                if request["id"] in self._tasks:
                    self._tasks[request["id"]].cancel()
            case "fetch":
                self._fetch(request, *fds)
            case "signal" | "kill" | "ask" | "end":
                self._control_run(request)

    def _begin(self, number: int, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(self._answered(number, work))
        self._tasks[number] = task
        task.add_done_callback(lambda _: self._tasks.pop(number, None))

    async def _answered(self, number: int, work: Coroutine[Any, Any, None]) -> None:
        """Do the work and reply to every failure, since the kernel waits for a reply."""
        try:
            await work
        except XlaNbError as problem:
            # The kernel starts a new process unless other requests still use this connection.
            spent = isinstance(problem, Unreachable) and self._tasks.keys() == {number}
            self._reply(id=number, refused=str(problem), spent=spent)
        except Exception as problem:
            self._reply(id=number, refused=faults.unplaced(str(problem)))
            raise

    def _wish_of(self, request: dict[str, Any], *, cpu: bool = False) -> Wish:
        number = request["id"]

        def tell(what: str) -> None:
            self._reply(id=number, waiting=what)

        hosts, slices, wait = request["hosts"], request["slices"], request["wait"]
        return Wish(number, hosts, slices, wait, tell, cpu=cpu)

    async def _look(self, request: dict[str, Any], into: int) -> None:
        wish = self._wish_of(request, cpu=request["cpu"])
        with open(into, "wb") as file:  # a descriptor, not a path
            async with self._order:
                group = await self._cluster.hosts(wish)
            pickle.dump(group.seats(wish.slices), file)
        self._reply(id=wish.id, done=True)

    async def _launch(self, message: dict[str, Any], fds: list[int]) -> None:
        events_fd, parcel_fd, request_fd = fds
        with (
            socket.socket(fileno=events_fd) as sock,
            open(parcel_fd, "rb") as values,  # noqa: PTH123 # a descriptor, not a path
        ):
            with open(request_fd, "rb") as file:  # noqa: PTH123 # a descriptor, not a path
                file.seek(0)
                request, env, program = pickle.load(file)
            sock.setblocking(False)
            cpu = asks_to_simulate({**env, **request.user_env})
            wish = self._wish_of(message, cpu=cpu)
            await self._run(Launch(wish, request, env, program, sock, values.fileno()))
        gc.collect()  # frees references to Ray's objects

    async def _run(self, launch: Launch) -> None:
        run = launch.request.run
        try:
            relay = await self._started(launch)
            self._reply(id=launch.wish.id, done=True)
            await relay.follow()
        except asyncio.CancelledError:  # the launch was abandoned
            if run in self._relays:
                self._relays[run].forget()
            raise
        finally:
            if run in self._relays:
                await self._leave(self._relays[run])

    async def _started(self, launch: Launch) -> Relay:
        """Start on the held hosts; once more on fresh ones if those have died. A program of live
        ranks goes where these are."""
        if launch.request.turn is not None:
            return await self._handed(launch, launch.request.turn.group)
        while True:
            async with self._order:
                group = await self._cluster.hosts(launch.wish)
                group.runs.add(launch.request.run)
            relay = self._relays[launch.request.run] = Relay(launch, group)
            try:
                await relay.start(launch)
            except HostGone:
                if group.fresh:
                    raise
                await self._leave(relay)
            else:
                return relay

    async def _handed(self, launch: Launch, group: str) -> Relay:
        if group not in self._relays:
            raise LaunchError(NO_GROUP)
        live = self._relays[group]
        live.group.runs.add(launch.request.run)
        relay = self._relays[launch.request.run] = Relay(launch, live.group, live)
        await relay.start(launch)
        return relay

    async def _leave(self, relay: Relay) -> None:
        """A run is over: release its hosts if one is lost, and forget what cannot be fetched."""
        group = relay.group
        group.runs.discard(relay.run)
        group.used = time.monotonic()
        if group.broken and not group.runs:
            await self._cluster.release(group)
        # A finished run's relay stays for `fetch` as long as its hosts are held.
        self._relays = {
            run: each
            for run, each in self._relays.items()
            if not each.forgotten and self._cluster.holds(each.group)
        }

    def _control_run(self, request: dict[str, Any]) -> None:
        relay = self._relays.get(request["run"])
        if relay is None:
            return
        match request["do"]:
            case "signal":
                relay.signal(request["pids"], request["number"])
            case "kill":
                relay.kill()
            case "ask":
                relay.ask()
            case "end":
                relay.end()

    def _fetch(self, request: dict[str, Any], into: int) -> None:
        relay = self._relays.get(request["run"])
        if relay is None:
            os.close(into)
            return

        async def fetch() -> None:
            with contextlib.suppress(Exception):  # the host or the reader is gone
                await relay.fetch(request["host"], request["file"], into)

        self._spawn(fetch())

    def _reply(self, **reply: Any) -> None:
        self._replies.put_nowait(reply)

    async def _send_replies(self) -> None:
        """Send the queued replies as the socket takes them."""
        # `_receive` notices the end of the socket.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while True:
                reply = json.dumps(await self._replies.get()).encode()
                await asyncio.get_running_loop().sock_sendall(self._control, reply)


def _set(closed: asyncio.Future[None]) -> None:
    if not closed.done():
        closed.set_result(None)


def main(fd: int, parent: int, address: str) -> None:
    """Entry point of the process: `fd` is the control socket, `parent` the notebook's pid."""
    watched = watch_parent(parent)
    if watched is None:
        return
    name_process("xla_nb-ray")
    control = socket.socket(fileno=fd)
    control.setblocking(False)

    async def serve() -> None:
        await Driver(control, watched, address).serve()
        os._exit(0)  # asyncio would wait for threads that wait for a dead cluster

    asyncio.run(serve())

"""The process that is the cluster's client, and takes its orders from the notebook's kernel.

The rule: one thread, which waits for nothing but events, and every request is answered. When the
control socket closes, everything ends.
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

from xla_nb.engines.ray import faults
from xla_nb.engines.ray.cluster import Cluster, Unreachable, Wish
from xla_nb.engines.ray.relay import HostGone, Launch, Relay
from xla_nb.errors import XlaNbError
from xla_nb.linux import name_process


class Driver:
    """One control socket in; launches, and what is said to them, out."""

    def __init__(self, control: socket.socket, address: str) -> None:
        self._control = control
        self._cluster = Cluster(address)
        self._relays: dict[str, Relay] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._others: set[asyncio.Task[None]] = set()
        self._order = asyncio.Lock()  # one launch at a time looks for hosts
        self._said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def serve(self) -> None:
        """Until the notebook's end of the control socket is closed."""
        loop = asyncio.get_running_loop()
        over = loop.create_future()
        loop.add_reader(self._control, self._hear, over)
        self._go(self._cluster.release_idle())
        self._go(self._speak())
        await over
        loop.remove_reader(self._control)
        for task in [*self._tasks.values(), *self._others]:
            task.cancel()
        await self._cluster.close()

    def _go(self, what: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(what)
        self._others.add(task)
        task.add_done_callback(self._others.discard)

    def _hear(self, over: asyncio.Future[None]) -> None:
        message, fds, _, _ = socket.recv_fds(self._control, 1 << 16, 4)
        if not message:
            if not over.done():
                over.set_result(None)
            return
        said = json.loads(message)
        match said["do"]:
            case "launch":
                self._begin(said["id"], self._launch(said, fds))
            case "look":
                self._begin(said["id"], self._look(said, *fds))
            case "abandon":
                if said["id"] in self._tasks:
                    self._tasks[said["id"]].cancel()
            case "fetch":
                self._fetch(said, *fds)
            case "interrupt" | "kill" | "ask":
                self._steer(said)

    def _begin(self, number: int, what: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(self._answered(number, what))
        self._tasks[number] = task
        task.add_done_callback(lambda _: self._tasks.pop(number, None))

    async def _answered(self, number: int, what: Coroutine[Any, Any, None]) -> None:
        """Whatever becomes of it, somebody waits for an answer."""
        try:
            await what
        except XlaNbError as problem:
            # With the last one that used the connection goes the process that has it.
            spent = isinstance(problem, Unreachable) and self._tasks.keys() == {number}
            self._say(id=number, refused=str(problem), spent=spent)
        except Exception as problem:
            self._say(id=number, refused=faults.unplaced(str(problem)))
            raise

    def _wish_of(self, said: dict[str, Any], device: str = "") -> Wish:
        number = said["id"]

        def tell(what: str) -> None:
            self._say(id=number, waiting=what)

        return Wish(number, said["hosts"], said["slices"], said["wait"], tell, device == "CPU")

    async def _look(self, said: dict[str, Any], into: int) -> None:
        wish = self._wish_of(said)
        with open(into, "wb") as file:  # a descriptor, not a path
            async with self._order:
                group = await self._cluster.hosts(wish)
            pickle.dump(group.seats(wish.slices), file)
        self._say(id=wish.id, done=True)

    async def _launch(self, said: dict[str, Any], fds: list[int]) -> None:
        happened, parcel, told = fds
        # Descriptors, not paths.
        with socket.socket(fileno=happened) as sock, open(parcel, "rb") as values:  # noqa: PTH123
            with open(told, "rb") as file:  # noqa: PTH123
                file.seek(0)
                order, program = pickle.load(file)
            sock.setblocking(False)
            wish = self._wish_of(said, order.user_env.get("PJRT_DEVICE", ""))
            await self._run(Launch(wish, order, program, sock, values.fileno()))
        gc.collect()  # what holds references to Ray's objects

    async def _run(self, launch: Launch) -> None:
        run = launch.order.run
        try:
            relay = await self._started(launch)
            self._say(id=launch.wish.id, done=True)
            await relay.follow()
        except asyncio.CancelledError:  # the launch was abandoned
            if run in self._relays:
                self._relays[run].forget()
            raise
        finally:
            if run in self._relays:
                await self._leave(self._relays[run])

    async def _started(self, launch: Launch) -> Relay:
        """On the hosts that are held; on others, once, if those are gone meanwhile."""
        while True:
            async with self._order:
                group = await self._cluster.hosts(launch.wish)
                group.runs.add(launch.order.run)
            relay = self._relays[launch.order.run] = Relay(launch, group)
            try:
                await relay.start(launch)
            except HostGone:
                if group.fresh:
                    raise
                await self._leave(relay)
            else:
                return relay

    async def _leave(self, relay: Relay) -> None:
        """A run is over; hosts of which one is lost are of no more use."""
        group = relay.group
        group.runs.discard(relay.run)
        group.used = time.monotonic()
        if group.broken and not group.runs:
            await self._cluster.release(group)
        # The relay of a run that is over stays for `fetch`, as long as its hosts have the files.
        self._relays = {
            run: each
            for run, each in self._relays.items()
            if not each.forgotten and self._cluster.holds(each.group)
        }

    def _steer(self, said: dict[str, Any]) -> None:
        relay = self._relays.get(said["run"])
        if relay is None:
            return
        match said["do"]:
            case "interrupt":
                relay.interrupt(said["pids"])
            case "kill":
                relay.kill()
            case "ask":
                relay.ask()

    def _fetch(self, said: dict[str, Any], into: int) -> None:
        relay = self._relays.get(said["run"])
        if relay is None:
            os.close(into)
            return

        async def fetch() -> None:
            with contextlib.suppress(Exception):  # the host is gone, or nobody reads any more
                await relay.fetch(said["host"], said["file"], into)

        self._go(fetch())

    def _say(self, **answer: Any) -> None:
        self._said.put_nowait(answer)

    async def _speak(self) -> None:
        """What is said, as soon as there is room for it."""
        with contextlib.suppress(
            BrokenPipeError, ConnectionResetError
        ):  # the end is seen elsewhere
            while True:
                answer = json.dumps(await self._said.get()).encode()
                await asyncio.get_running_loop().sock_sendall(self._control, answer)


def main(fd: int, address: str) -> None:
    """Entry of the process."""
    name_process("xla_nb-ray")
    control = socket.socket(fileno=fd)
    control.setblocking(False)

    async def serve() -> None:
        await Driver(control, address).serve()
        os._exit(0)  # asyncio would wait for its threads, and they for a cluster which is gone

    asyncio.run(serve())

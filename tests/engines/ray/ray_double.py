"""Test doubles of Ray and of hosts: resources are only counted, and hosts answer as the test says.

Nothing is started. test_cluster.py uses a real Ray.
"""

from __future__ import annotations

import asyncio
import platform
import sys
import types

from xla_nb.engines.ray.driver import Launch
from xla_nb.engines.ray.host import About, HostNews, version
from xla_nb.engines.ray.placement import ActorGroup, Wish
from xla_nb.messages import events
from xla_nb.messages.orders import Request
from xla_nb.process_state.random_state import Inheritance
from xla_nb.topology.slices import Host

NEVER = object()  # in place of an answer: the host does not answer


def about(number=1, **changes):
    fields = {
        "hostname": f"m{number}",
        "address": f"10.0.0.{number}",
        "node": f"n{number}",
        "python": platform.python_version(),
        "version": version(),
        "chips": 0,
        "environ": {},
        **changes,
    }
    return About(**fields)


def a_wish(hosts=2, slices=None, wait=0.0, tell=lambda what: None, cpu=False):
    return Wish(hosts, slices, wait, tell, cpu)


def a_launch(record="/r", sock=None, parcel=-1, wish=None, run="r1", **options):
    request = Request(run, "xla", "/p", str(record), "f", False, None, {},
                      "/", (), b"", Inheritance(), **options)  # fmt: skip
    return Launch(wish or a_wish(), request, {}, {}, sock, parcel)


def a_group(*actors, abouts=None, hosts=None, slices=None, takes=None):
    """A group of placed hosts: these actors, named m0, m1, ..."""
    abouts = abouts or [about(number) for number in range(len(actors))]
    bundles = [takes or {"CPU": 1.0}] * len(actors)
    machines = [Host(each.address, each.hostname, each.environ) for each in abouts]
    return ActorGroup(a_wish(hosts, slices), None, bundles, list(actors), machines)


class Actor:
    """Answers a call with its function in `says`, and a call of `news` with what `has` queued."""

    def __init__(self, **says):
        self.says, self.told, self.answers = says, [], asyncio.Queue()

    def __getattr__(self, name):
        return types.SimpleNamespace(remote=lambda *args: self._call(name, args))

    def _call(self, name, args):
        self.told.append((name, *args))
        if name in self.says:
            answer = asyncio.get_running_loop().create_future()
            value = self.says[name](*args)
            if isinstance(value, Exception):
                answer.set_exception(value)
            elif value is not NEVER:
                answer.set_result(value)
            return answer
        return asyncio.ensure_future(self._news() if name == "news" else asyncio.sleep(0))

    async def _news(self):
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def has(self, number, *new, files=(), over=False):
        self.answers.put_nowait(HostNews(number, list(map(events.encode, new)), files, over))

    def fails(self, problem):
        self.answers.put_nowait(problem)

    @property
    def calls(self):
        return [name for name, *_ in self.told]


def ready(**says):
    """A host that starts runs."""
    return Actor(
        **{"hold_port": lambda run: ("10.0.0.0", 1234), "start": lambda part, parcel: "", **says}
    )


class Ray:
    """A cluster of nodes with one CPU each.

    `actors` are handed out in order; after that, new ones are made.
    """

    def __init__(self, nodes=3):
        self.count, self.placed, self.removed, self.killed = nodes, [], [], []
        self.options, self.actors, self.made = [], [], []
        self.fits, self.asked = True, asyncio.Event()
        self.taken = self.dead = 0  # dead: nodes that the cluster counts until it has placed
        self.connects, self.refuses = 0, None

    def connect(self, *args, **options):
        self.connects += 1
        if self.refuses:
            raise self.refuses

    def nodes(self):
        return [
            {
                "NodeManagerHostname": f"m{n}",
                "NodeManagerAddress": f"10.0.0.{n}",
                "Alive": True,
                "Resources": {"CPU": 1.0},
                "NodeID": f"n{n}",
            }
            for n in range(self.count)
        ]

    def available(self):
        """The first nodes are taken first."""
        return {f"n{n}": {"CPU": float(n >= self.taken)} for n in range(self.count)}

    def placement_group(self, bundles, strategy):
        self.placed.append((bundles, strategy))
        size = len(bundles) if self.fits else 0
        self.taken += size

        def wait(seconds):
            self.count -= self.dead
            return self.fits

        return types.SimpleNamespace(number=len(self.placed), size=size, wait=wait)

    def remove_placement_group(self, placement):
        self.removed.append(placement.number)
        self.taken -= placement.size

    def actor(self, **options):
        self.options.append(options)
        self.asked.set()
        number = len(self.made)
        made = (
            self.actors.pop(0) if self.actors else ready(about=lambda: about(number % self.count))
        )
        self.made.append(made)
        return types.SimpleNamespace(remote=lambda: made)

    def shutdown(self):
        pass


def installed(monkeypatch):
    """Replace Ray's modules."""
    made = Ray()
    client = types.SimpleNamespace(ray=types.SimpleNamespace(is_connected=lambda: False))
    modules = {
        "ray": types.SimpleNamespace(
            init=made.connect,
            shutdown=made.shutdown,
            kill=made.killed.append,
            exceptions=types.SimpleNamespace(ActorUnavailableError=ConnectionError),
            nodes=made.nodes,
            put=lambda value: value,
            remote=lambda cls: types.SimpleNamespace(options=made.actor),
        ),
        "ray.util": types.SimpleNamespace(
            placement_group=made.placement_group,
            remove_placement_group=made.remove_placement_group,
            client=client,
        ),
        "ray.util.scheduling_strategies": types.SimpleNamespace(
            PlacementGroupSchedulingStrategy=lambda placement, placement_group_bundle_index: (
                placement.number,
                placement_group_bundle_index,
            )
        ),
        "ray._private": types.SimpleNamespace(),
        "ray._private.state": types.SimpleNamespace(available_resources_per_node=made.available),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return made

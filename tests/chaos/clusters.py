"""Signal random processes of runs on a Ray cluster and check the outcome.

Every round launches a run on three nodes of this machine and strikes one of its processes while all
ranks train. It then checks that the problem is reported soon, the run ends, no process or object of
it is left, and the next launch works.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.support.kernel import Notebook
from tests.support.ray_nodes import Nodes, eventually, of_ours

#: The name of a process, the signal, and words of which at least one must be reported.
VICTIMS: dict[str, tuple[str, signal.Signals, tuple[str, ...]]] = {
    "rank": ("xla_nb-rank", signal.SIGKILL, ("SIGKILL",)),
    "stopped rank": ("xla_nb-rank", signal.SIGSTOP, ("no progress", "No progress")),
    "job": ("xla_nb-job", signal.SIGKILL, ("SIGKILL",)),
    "actor": ("ray::HostActor", signal.SIGKILL, ("was lost", "SIGKILL")),
    "raylet": ("", signal.SIGKILL, ("was lost",)),
    "driver": ("xla_nb-ray", signal.SIGKILL, ("SIGKILL",)),
}
LATEST = 10.0  # seconds within which it must be reported
_HOSTS, _PATIENCE = 3, 120.0

_OPTIONS = f"%%xla_spawn --on ray --hosts {_HOSTS} -n 2 --bg --view none --grace 0.5"
_TRAIN = """
import torch, torch_xla, torch_xla.core.xla_model as xm
def train(rank):
    model = torch.nn.Linear(8, 1).to("xla")
    best = torch.optim.SGD(model.parameters(), lr=1e-9)
    step = 0
    while True:
        best.zero_grad()
        model(torch.ones(4, 8, device="xla") * big[rank]).sum().backward()
        xm.optimizer_step(best)
        torch_xla.sync()
        step += 1
        print("step", step, flush=True)
"""
_OBJECTS = """
import sys, ray
from ray._private.internal_api import memory_summary
ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
print(memory_summary(address=sys.argv[1], stats_only=True))
"""


@dataclass
class Round:
    """The outcome of one strike: seconds until it was reported, and the reported text."""

    victim: str
    after: float = 0.0
    said: str = ""
    hung: bool = False
    left: list[str] = field(default_factory=list)
    objects: int = 0
    next_failed: str = ""

    @property
    def faults(self) -> dict[str, Any]:
        """Failed checks by name; empty if all passed."""
        words = VICTIMS[self.victim][2]
        found: dict[str, Any] = {
            "late": self.after if self.after > LATEST else 0.0,
            "unnamed": not any(word in self.said for word in words),
            **{name: getattr(self, name) for name in ("hung", "left", "objects", "next_failed")},
        }
        return {name: value for name, value in found.items() if value}


class Arena:
    """A cluster and a notebook that launches on it."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        os.environ.setdefault("XLA_NB_TEST", f"clusters-{os.getpid()}")  # `of_ours` looks for it
        self._nodes = Nodes(_HOSTS)
        try:
            self._notebook = Notebook(RAY_ADDRESS=self._nodes.address)
            self._notebook.ok("%load_ext xla_nb")
            self._notebook.ok(
                "import json, numpy, xla_nb\nfrom xla_nb.monitor import sentences\n"
                "big = numpy.ones(2_000_000)"
            )
            self._launch_small()
            self._objects_before = self._objects()
        except BaseException:
            self._nodes.close()
            raise

    def close(self) -> None:
        self._notebook.close()
        self._nodes.close()

    def round(self, victim: str) -> Round:
        result = Round(victim)
        self._notebook.ok(f"{_OPTIONS} --hang-after 3 -o run\n{_TRAIN}")
        steps = self._random.randrange(2, 20)
        started = f"len(run.state.ranks) == {2 * _HOSTS}"
        all_at = f"all('step {steps}\\n' in run.output(rank) for rank in run.state.ranks)"
        self._until(f"{started} and {all_at}", _PATIENCE)
        self._strike(victim)
        began = time.monotonic()
        self._until("run.done or bool(run.state.troubled) or run.state.hang is not None", _PATIENCE)
        result.after = time.monotonic() - began
        if VICTIMS[victim][1] == signal.SIGSTOP:
            result.said = self._said()
            self._notebook.ok("run.stop()")
        shown = self._notebook.run(
            f"try: run.wait({_PATIENCE:g})\nexcept xla_nb.RunFailed: pass", timeout=2 * _PATIENCE
        )
        result.hung = shown.status != "ok"
        result.said += self._said()
        result.left = self._left()
        result.next_failed = self._next(victim)
        result.objects = self._kept_objects()
        return result

    def _strike(self, victim: str) -> None:
        name, number, _ = VICTIMS[victim]
        if victim == "raylet":
            self._nodes.kill(self._random.choice(self._nodes.others))
        else:
            os.kill(self._random.choice(sorted(of_ours(name))), number)

    def _until(self, condition: str, seconds: float) -> None:
        eventually(lambda: self._notebook.value(f"bool({condition})") == "True", seconds)

    def _said(self) -> str:
        return self._notebook.value(
            "' '.join([sentences.headline(run.state), str(run.state.hang),"
            " *(n.text for n in run.state.notices), *(str(e) for e in run.errors.values())])"
        )

    @staticmethod
    def _left() -> list[str]:
        """Processes of the run that are still running."""
        names = "xla_nb-rank", "xla_nb-job"
        try:
            eventually(lambda: not of_ours(*names))
        except AssertionError:
            return sorted(of_ours(*names).values())
        return []

    def _kept_objects(self) -> int:
        """Objects that stay in the store; Ray releases those of a dead job after some seconds."""
        deadline = time.monotonic() + 10
        while (kept := self._objects() - self._objects_before) > 0 and time.monotonic() < deadline:
            time.sleep(0.5)
        return max(0, kept)

    def _objects(self) -> int:
        """Objects in the cluster's store, as Ray counts them."""
        command = [sys.executable, "-c", _OBJECTS, self._nodes.address]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found = re.search(r"Plasma memory usage \d+ MiB, (\d+) objects", text)
        assert found is not None, text
        return int(found[1])

    def _next(self, victim: str) -> str:
        if victim == "raylet":
            self._nodes.has_noticed()
            self._nodes.add()
        try:
            self._launch_small()
        except AssertionError as problem:
            return str(problem)[:300] or "another result"
        return ""

    def _launch_small(self) -> None:
        cell = f"%%xla_spawn --on ray --hosts {_HOSTS} -n 2 --view none -o small --wait 1m"
        self._notebook.ok(f"{cell}\ndef f(rank): return rank", timeout=300)
        assert self._notebook.value("sum(small.results.values())") == "15"


def rounds(count: int, seed: int) -> Iterator[Round]:
    """Perform `count` strikes, on each kind of victim about equally often."""
    order = random.Random(seed)
    arena = Arena(seed)
    try:
        deck: list[str] = []
        for _ in range(count):
            deck = deck or order.sample(list(VICTIMS), len(VICTIMS))
            yield arena.round(deck.pop())
    finally:
        arena.close()

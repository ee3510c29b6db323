"""Kill random processes of a training run and check the outcome.

Every round launches a run that trains, prints and loads data in a worker, waits for a random step
and sends a random signal to a random process of the run. It then checks that the run ends, the
cause is reported, no printed byte is lost, nothing is left and the next launch works.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.support.kernel import Notebook

VICTIMS = ("rank", "job", "server", "spare", "worker", "kernel")
SIGNALS = (signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM)
PATIENCE = 90.0  # timeout in seconds
_HANG = 3  # seconds until a hang is reported

_TRAIN = """
import os, torch, torch_xla
import torch_xla.core.xla_model as xm
from torch.utils.data import DataLoader
def train(rank):
    journal = os.open(f"{FOLDER}/journal-{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    loader = DataLoader(range(10**9), batch_size=8, num_workers=1)
    model = torch.nn.Linear(8, 1).to("xla")
    best = torch.optim.SGD(model.parameters(), lr=1e-9)
    for step, batch in enumerate(loader):
        best.zero_grad()
        model(batch.float().to("xla")).sum().backward()
        xm.optimizer_step(best)
        torch_xla.sync()
        for line in range(LINES):
            text = f"{step} {line} {'x' * 80}\\n".encode()
            os.write(1, text)
            os.write(journal, text)  # what has been printed for certain
        os.pwrite(COUNTER, step.to_bytes(8, "little"), 8 * rank)
"""


@dataclass
class Round:
    """The outcome of one kill; `said` is all text shown to the user."""

    victim: str
    number: signal.Signals
    hung: bool = False
    said: str = ""
    unnamed: bool = False
    lost: int = 0
    orphans: list[str] = field(default_factory=list)
    temporary: list[str] = field(default_factory=list)
    next_failed: str = ""

    @property
    def faults(self) -> dict[str, Any]:
        """Failed checks by name; empty if all passed."""
        found = {
            name: getattr(self, name)
            for name in ("hung", "unnamed", "lost", "orphans", "temporary", "next_failed")
        }
        return {name: value for name, value in found.items() if value}


class Arena:
    """A kernel with its own TMPDIR whose runs are killed; replaced when it is killed itself."""

    def __init__(self, seed: int, lines: int = 20) -> None:
        self._random = random.Random(seed)
        self._lines = lines
        self._folder = tempfile.TemporaryDirectory(prefix="xc-")
        self._home = str(Path(self._folder.name, "home"))
        self._tmp = Path(self._folder.name, "tmp")
        self._tmp.mkdir()
        self._open()

    def _open(self) -> None:
        # Identifies its processes even after their parent or session has changed.
        self._mark = f"XLA_NB_CHAOS={random.SystemRandom().getrandbits(64):x}"
        name, _, value = self._mark.partition("=")
        self.notebook = Notebook(TMPDIR=str(self._tmp), XLA_NB_HOME=self._home, **{name: value})
        self.notebook.ok("%load_ext xla_nb")
        self.notebook.ok(
            f"import os\nFOLDER = {self._folder.name!r}\nLINES = {self._lines}\n"
            "import xla_nb, torch_xla.core.xla_model\nfrom xla_nb.monitor import sentences"
        )
        self._launch_small()  # starts the server, which creates its files in TMPDIR
        self._before = self._temporary()

    def close(self) -> None:
        self.notebook.close()
        self._folder.cleanup()

    # ------------------------------------------------------------ one round

    def round(self, victim: str, number: signal.Signals) -> Round:
        result = Round(victim, number)
        if victim == "spare":
            self._strike(self._spare(), number)
        self._launch()
        if victim != "spare":
            self._until_step(self._random.randrange(1, 6))
            target = self._target(victim)
            self._strike(target, number)
        if victim == "kernel":
            self._after_the_kernel(result)
        else:
            self._after(result)
        result.lost = self._lost()
        result.orphans += self._orphans()
        result.next_failed = self._next()
        now = self._temporary()
        result.temporary = sorted(now - self._before)
        self._before |= now  # report each once
        return result

    def _launch(self) -> None:
        code = _TRAIN.replace("COUNTER", "os.open(f'{FOLDER}/counter', os.O_RDWR | os.O_CREAT)")
        Path(self._folder.name, "counter").write_bytes(b"\xff" * 16)
        for rank in (0, 1):
            Path(self._folder.name, f"journal-{rank}").unlink(missing_ok=True)
        options = f"-n 2 --bg --view none --grace 0.5 --hang-after {_HANG} -o run"
        self.notebook.ok(f"%%xla_spawn {options}\n{code}")
        self._record = Path(self._value("str(run.record.path)"))

    def _until_step(self, step: int) -> None:
        self._wait(lambda: min(self._steps()) >= step, f"step {step}")

    def _steps(self) -> list[int]:
        data = Path(self._folder.name, "counter").read_bytes()
        return [int.from_bytes(data[n : n + 8], "little", signed=True) for n in (0, 8)]

    @staticmethod
    def _wait(condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(what)
            time.sleep(0.01)

    def _target(self, victim: str) -> psutil.Process:
        kernel = psutil.Process(self.notebook.pid)
        if victim == "kernel":
            return kernel
        (server,) = [p for p in kernel.children() if p.name() == "xla_nb-server"]
        if victim == "server":
            return server
        (job,) = [p for p in server.children() if p.name() == "xla_nb-job"]
        if victim == "job":
            return job
        rank = self._random.choice([p for p in job.children() if "xla_nb-rank" in p.name()])
        return rank if victim == "rank" else self._random.choice(rank.children())

    def _spare(self) -> psutil.Process:
        kernel = psutil.Process(self.notebook.pid)
        (server,) = [p for p in kernel.children() if p.name() == "xla_nb-server"]

        def spares() -> list[psutil.Process]:
            return [p for p in server.children() if p.name() == "xla_nb-spare"]

        self._wait(lambda: bool(spares()), "a spare job")
        return spares()[0]

    @staticmethod
    def _strike(target: psutil.Process, number: signal.Signals) -> None:
        os.kill(target.pid, number)

    # ------------------------------------------------------------ outcome

    def _after(self, result: Round) -> None:
        """The run ends by itself, or reports the problem and can be stopped."""
        harmless = result.victim == "spare" or (
            result.victim in ("server", "job") and result.number == signal.SIGSTOP
        )
        if harmless:
            self._until_step(1)
        stops = harmless or result.number == signal.SIGSTOP
        if stops and not harmless:  # it must be reported without user action
            with contextlib.suppress(TimeoutError):
                self._wait(
                    lambda: bool(self._value("run.done or run.state.hang is not None")), "a hang"
                )
        result.said = self._told()
        if stops:
            self.notebook.ok("run.stop()")
        shown = self.notebook.run(
            f"try: run.wait({PATIENCE:g})\nexcept xla_nb.RunFailed: pass", timeout=2 * PATIENCE
        )
        result.hung = shown.status != "ok"
        if not stops:
            result.said = self._told()
        result.unnamed = not harmless and not _names(result)

    def _told(self) -> str:
        texts = (
            "[notice.text for notice in run.state.notices]",
            "str(run.state.hang)",
            "[str(error) for error in run.errors.values()]",
            "sentences.headline(run.state)",
        )
        return json.dumps(self._value(f"[{', '.join(texts)}]"))

    def _value(self, expression: str) -> Any:
        text = self.notebook.value(f"__import__('json').dumps({expression})")
        return json.loads(text[1:-1].encode().decode("unicode_escape"))

    def _after_the_kernel(self, result: Round) -> None:
        if result.number == signal.SIGSTOP:
            os.kill(self.notebook.pid, signal.SIGCONT)
            self._after(Round("spare", result.number))
            return
        result.orphans = self._orphans()
        self.notebook.kill()
        self._open()
        self.notebook.ok(f"run = xla_nb.open_run({str(self._record)!r})")  # the incomplete record

    def _orphans(self) -> list[str]:
        """Processes of this kernel that should be gone: all except kernel, server and spare."""
        allowed = ("xla_nb-server", "xla_nb-spare")

        def found() -> list[str]:
            names = []
            for pid in _carrying(self._mark):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process = psutil.Process(pid)
                    kept = _is_alive(self.notebook.pid) and process.name() in allowed
                    if pid != self.notebook.pid and not kept:
                        names.append(f"{process.name()} ({process.status()})")
            return names

        with contextlib.suppress(TimeoutError):
            self._wait(lambda: not found(), "the end of everything")
        return found()

    def _lost(self) -> int:
        """The number of bytes that ranks have certainly printed and that their logs lack."""
        lost = 0
        for rank in (0, 1):
            journal = Path(self._folder.name, f"journal-{rank}")
            if journal.exists():
                sure, log = journal.read_bytes(), (self._record / f"rank-{rank}.out").read_bytes()
                lost += 0 if log.startswith(sure) else max(1, len(sure) - len(log))
        return lost

    def _next(self) -> str:
        try:
            self._launch_small()
        except AssertionError as problem:
            return str(problem)[:300] or "another result"
        return ""

    def _launch_small(self) -> None:
        self.notebook.ok("%%xla_spawn -n 2 --view none -o small\ndef f(rank): return rank")
        assert self.notebook.value("small.results") == "{0: 0, 1: 1}"

    def _temporary(self) -> set[str]:
        """Paths in TMPDIR, except the folder of one fork server, whose name differs each time.

        Empty files are torch's: a DataLoader whose worker has died opens some to check for free
        descriptors, and may be killed before it removes them. A file of four bytes is Python's,
        which writes one when a process first asks for the folder of temporary files."""
        paths = {
            str(path.relative_to(self._tmp))
            for path in self._tmp.rglob("*")
            if not _TRIED.fullmatch(path.name) or not path.is_file() or path.stat().st_size > 4
        }
        servers = sorted({path.partition("/")[0] for path in paths if path.startswith("xla_nb-")})
        mine = servers[:1]
        return {path for path in paths if path.partition("/")[0] not in mine}


#: Names of files that `tempfile` removes immediately.
_TRIED = re.compile(r"(tmp)?[a-z0-9_]{8}")


def _carrying(variable: str) -> list[int]:
    """Processes started with this `NAME=value` in their environment, and their forks. Ended
    processes have no environment (proc(5), environ)."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended
                if variable.encode() in (path / "environ").read_bytes().split(b"\0"):
                    found.append(int(path.name))
    return found


def _is_alive(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def _names(result: Round) -> bool:
    """True if the text shown names the signal."""
    if result.number == signal.SIGSTOP:
        return "stopped" in result.said or "waiting" in result.said or "quiet" in result.said
    if result.victim == "worker" and "failed at Cell In[" in result.said:
        return True  # torch's own message, sometimes about the pipe to the worker
    name = result.number.name
    human = signal.strsignal(result.number) or name
    return name in result.said or human in result.said


def rounds(count: int, seed: int) -> Iterator[Round]:
    """Perform `count` kills, with each kind of victim and signal about equally often."""
    kinds = [(victim, number) for victim in VICTIMS for number in SIGNALS]
    order = random.Random(seed)
    arena = Arena(seed)
    try:
        deck: list[tuple[str, signal.Signals]] = []
        for _ in range(count):
            deck = deck or order.sample(kinds, len(kinds))
            yield arena.round(*deck.pop())
    finally:
        arena.close()

"""Live ranks from the notebook's side: a lasting run, and the programs that it is given.

Each program is its own Run, launched like any other. Names that it binds belong to the ranks.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace

from xla_nb.engines import Engine
from xla_nb.errors import LaunchError, UsageError
from xla_nb.live_ranks.sent import Sent
from xla_nb.messages import events
from xla_nb.messages.orders import Turn
from xla_nb.monitor import sentences
from xla_nb.monitor.drift import Watch
from xla_nb.monitor.state import ENDED
from xla_nb.pickling import code_facts
from xla_nb.program.build import Program
from xla_nb.program.cell_text import Cell
from xla_nb.record.files import Folder, Record
from xla_nb.run.launch import launch
from xla_nb.run.options import Options
from xla_nb.run.run import KILL_PATIENCE, Run, places
from xla_nb.runtimes.fit import OnWait
from xla_nb.wording import exactly, ranks

#: The name of the live ranks that get programs without a name.
DEFAULT = "ranks"
#: The name of each program's module: the file for the next one exists before it is known.
PROGRAM = "xla_nb_live_cell"
_TICK, _DEATH_TIMEOUT = 0.1, 5.0
_BOTH_NOTICE = (
    "In %%xla cells `{name}` is the ranks' own variable (set in {label}), not the notebook's. "
    "To use the notebook's value, run `{ranks}.push({name}={name})`, or `del {name}` in a "
    "%%xla cell."
)
_STOP_REASON = "Stopped because the live ranks were ended"


@dataclass(frozen=True)
class Played:
    """A program that ran on live ranks: its cell, to run it again, or None if only code could
    repeat it, and its values are not kept."""

    label: str
    cell: Cell | None
    options: Options
    members: tuple[int, ...] | None


class Group:
    """Live ranks, called `name`.

    run      their run
    world    all ranks
    number   the number of programs they were given
    remote   the names that programs have bound on ranks, each with the label of the last program
             that did
    sent     values of the notebook that they were sent
    history  the programs that succeeded, oldest first
    watch    the variables that are compared after each cell, by `compare`
    """

    compare: Callable[[Group, Run], None]

    def __init__(
        self,
        name: str,
        run: Run,
        engine: Engine,
        options: Options,
        idle: float | None = None,
        *,
        has_magics: bool = True,
    ) -> None:
        """idle: seconds without a program after which they end; has_magics: a notebook started
        them, not a script."""
        self.name, self.run, self.options, self.idle = name, run, options, idle
        self._has_magics, self._is_ended = has_magics, False
        self._why_lost = ""
        self._pid = os.getpid()
        self._timer: threading.Timer | None = None
        self._turn_lock = threading.Lock()  # to give ranks a program
        self._asks = threading.Lock()  # held until a question is answered
        self._question: Run | None = None  # the last question
        run.take(events.GroupBegan(name=name, idle=idle))
        self.remote: dict[str, str] = {}
        self.sent = Sent()
        self.history: list[Played] = []
        self.watch = Watch(())
        self._engine = engine
        self.number = 0
        self._programs: dict[Run, tuple[int, ...]] = {}  # those in progress, and their ranks
        self._bound: dict[str, set[int]] = {}
        self._imported: dict[str, str] = {}  # module or object imported under each name
        self._both_names: set[str] = set()  # names reported as bound on both sides

    @property
    def world(self) -> tuple[int, ...]:
        return tuple(sorted(self.run.state.ranks))

    @property
    def alive(self) -> tuple[int, ...]:
        """The ranks that can still run a program."""
        if self.run.done or self.run.state.stopping or self.run.state.ending:
            return ()
        states = self.run.state.ranks.values()
        return tuple(sorted(rank.rank for rank in states if rank.pid and rank.phase not in ENDED))

    @property
    def _are_ready(self) -> bool:
        return self.run.state.has_all_ranks and self.alive == self.world

    @property
    def _are_starting(self) -> bool:
        state = self.run.state
        is_over = self.run.done or state.stopping or state.ending or state.troubled
        return not (is_over or self._are_ready)

    @property
    def why_lost(self) -> str:
        """Why some of its ranks cannot run a program; empty if all can."""
        if self._why_lost:
            return self._why_lost
        if self.alive == self.world and self.world:
            return ""
        return sentences.headline(self.run.state).rstrip(".")

    def wait_until_ready(self) -> None:
        """Wait until all ranks have started. Raises RunFailed if they did not start, LaunchError if
        they were ended while starting."""
        state = self.run.state
        while not self.run.done and not state.troubled:
            with self.run.changed:
                if self._are_ready:
                    break
                self.run.changed.wait(_TICK)
        else:
            self.end("before all ranks had started")
            self.run.check()
            raise LaunchError(f"{self.why_lost}.")  # somebody ended them while they started
        self._start_timer()

    def launch(
        self,
        program: Program,
        options: Options,
        members: tuple[int, ...] | None,
        on_wait: OnWait,
    ) -> Run:
        """Run a program on `members`, by default all ranks. Returns its run immediately, or after
        the answer to a question that the ranks are being asked.

        Raises UsageError if one of them does not exist or runs another program, and LaunchError.
        """
        chosen = self.world if members is None else members
        with self._asks, self._turn_lock:
            self.check(chosen)
            program = replace(program, notes=(*program.notes, *self._notices_of_both(program.both)))
            run = self._launch(program, options, chosen, on_wait)
            number = self.number
            self.sent.confirm()
            event = events.ProgramBegan(number=number, run=run.name, label=run.label, ranks=chosen)
            self.run.take(event)
        run.at_end(lambda run: self._end_program(run, number))
        return run

    @contextlib.contextmanager
    def asking(
        self, program: Program, options: Options, members: tuple[int, ...], within: float | None
    ) -> Iterator[Run]:
        """Ask ranks a question, which is not recorded for long: other programs wait for its end.
        Raises like `launch`, and TimeoutError if another question is not over `within` that many
        seconds."""
        if not self._asks.acquire(timeout=-1 if within is None else within):
            raise TimeoutError
        try:
            with self._turn_lock:
                self.check(members)
                program = replace(program, remote=self.remote.keys())
                run = self._launch(program, options, members, asks=True)
            run.at_end(self._remove_program)
            yield run
        finally:
            self._asks.release()

    def _launch(
        self,
        program: Program,
        options: Options,
        chosen: tuple[int, ...],
        on_wait: OnWait = lambda seconds, what: None,
        *,
        asks: bool = False,
    ) -> Run:
        self._cancel_timer()
        self.number += 1
        members = None if chosen == self.world else chosen
        turn = Turn(self.run.name, self.number, members, frozenset(program.remote), asks)
        rank_options = replace(options, n=len(chosen))
        folder: Folder | Record = "parts" if asks else self.run.record
        kind = type(self.run)
        run = launch(program, rank_options, self._engine, on_wait, kind, turn=turn, folder=folder)
        self._question = run if asks else self._question
        self._programs[run] = chosen
        run.before_force = self._note_loss
        return run

    def _note_loss(self, run: Run, sent: signal.Signals) -> None:
        """Note the loss of ranks that are about to be ended by force with a program."""
        staying = [rank for rank in run.state.ranks.values() if rank.phase not in ENDED]
        subject, failure = "the ranks' job", "did not answer"
        if staying:
            where = places(staying, time.time())
            subject = ranks(rank.rank for rank in staying)
            failure = f"did not stop ({where})" if where else "did not stop"
        self._why_lost = f"{run.label} was ended by force because {subject} {failure}"
        if sent == signal.SIGKILL or len(staying) == len(self.world):  # all ranks
            self.run.stops_because(self._why_lost)

    def remember(self, played: Played, run: Run) -> None:
        """Add an ended run to the history if it succeeded."""
        if run.ok:
            self.history.append(played)

    def remote_beside(self, values: Mapping[str, object]) -> Set[str]:
        """The names that belong to the ranks while the notebook has these values: without those
        under which both imported the same object, which all ranks get."""
        names = self._imported.keys() & values.keys()
        origin = {name: code_facts.imported_as(values[name]) for name in names}
        same = {name for name, obj in origin.items() if obj and obj == self._imported[name]}
        return self.remote.keys() - same

    def _notices_of_both(self, names: Iterable[str]) -> list[str]:
        """Notices for names that both sides have bound, each name once."""
        new = [name for name in names if name not in self._both_names]
        self._both_names.update(new)
        expression = self.in_code
        return [_BOTH_NOTICE.format(name=n, label=self.remote[n], ranks=expression) for n in new]

    def check(self, members: Iterable[int]) -> None:
        """Raise UsageError if one of these ranks cannot run a program after answering its current
        question."""
        if os.getpid() != self._pid:
            raise UsageError(
                "These live ranks belong to the process that started them; a forked process "
                "cannot use them. Start new ones here: xla_nb.ranks(n=2)."
            )
        if self._are_starting:
            raise UsageError("The live ranks are still starting.")
        chosen = set(members)
        if unknown := chosen - set(self.world):
            verb = "There is" if len(unknown) == 1 else "There are"
            raise UsageError(f"{verb} no {ranks(unknown)}, only {ranks(self.world)}.")
        if chosen - set(self.alive):
            raise LaunchError(f"{self._describe_loss()} Start new ones: {self._start_command}.")
        for run, busy in list(self._programs.items()):
            common = chosen & set(busy)
            if common and run is not self._question:
                advice = f" (%xla_stop {run.name})" if self._has_magics else ""
                raise UsageError(
                    f"{run.label} is still running on {ranks(sorted(common))}. Wait for it, or "
                    f"stop it{advice}."
                )

    @property
    def in_code(self) -> str:
        """The expression that gives them in code."""
        return f"xla_nb.ranks({'' if self.name == DEFAULT else repr(self.name)})"

    @property
    def told_of_being_there(self) -> str:
        """The refusal to start others with the same name."""
        name = self._magic_argument
        end = f"%xla_shutdown{name}" if self._has_magics else "close()"
        text = f"Live ranks{name} are already running ({ranks(self.world)})."
        return f"{text} End them ({end}), or start the new ones under another name."

    @property
    def _magic_argument(self) -> str:
        """Their name as an argument of a magic; "" if it needs none."""
        return "" if self.name == DEFAULT else f" {shlex.quote(self.name)}"

    @property
    def _start_command(self) -> str:
        """The command that starts new ones in their place."""
        arg = self._magic_argument
        if self._has_magics and self._is_ended:
            return f"%xla_start --name{arg}" if arg else "%xla_start"
        if self._has_magics:
            return f"%xla_restart{arg}"
        name = "" if self.name == DEFAULT else f"{self.name!r}, "
        call = f"xla_nb.ranks({name}n={len(self.world)})"
        return call if self._is_ended else f"close(), then {call}"

    def _describe_loss(self) -> str:
        if self.run.state.ending and not self.run.state.troubled:
            return f"{self.why_lost}."
        if self.alive:
            lost = sorted(set(self.world) - set(self.alive))
            return (
                f"{self.why_lost}. The state of {ranks(lost)} is lost. You can still run cells on "
                f"{ranks(self.alive)}, and read values with `{self.in_code}.pull`."
            )
        return f"The live ranks have ended: {self.why_lost}."

    def _end_program(self, run: Run, number: int) -> None:
        """Note the names that an ended program bound. If a rank could not open what it was sent,
        the ranks' values are unknown, so everything is sent again."""
        if run.state.unopened:
            self.sent.forget()
        dead = {rank.rank for rank in run.state.ranks.values() if rank.death is not None}
        with self.run.changed:  # their death is reported to the live ranks' run as well
            self.run.changed.wait_for(lambda: not dead & set(self.alive), _DEATH_TIMEOUT)
        for event in run.state.bound:
            for name in event.bound:
                self._imported[name] = event.imported.get(name, "")
                self._bound.setdefault(name, set()).add(event.rank)
                self.remote[name] = run.label
            for name in event.deleted:
                self._bound.get(name, set()).discard(event.rank)
            self.sent.lacks_again(event.deleted)
        for name in [name for name, holders in self._bound.items() if not holders]:
            del self._bound[name]
            self.remote.pop(name, None)
        del self._programs[run]
        if self.watch.names:
            self.compare(self, run)
        headline, outcome = sentences.headline(run.state), run.state.outcome
        assert outcome != "running"
        end_event = events.ProgramEnded(
            number=number,
            outcome=outcome,
            headline=headline,
            elapsed=run.elapsed,
            found=sentences.found(run.state),
        )
        self.run.take(end_event)
        self._start_timer()

    def _remove_program(self, run: Run) -> None:
        del self._programs[run]
        self._start_timer()

    def _start_timer(self) -> None:
        """End the ranks if no program arrives for too long."""
        if self.idle is not None and not self._programs and not self.run.state.ending:
            self._cancel_timer()
            self._timer = threading.Timer(self.idle, self._end_idle)
            self._timer.daemon = True
            self._timer.start()

    def _end_idle(self) -> None:
        with self._turn_lock:
            if self._programs or self.idle is None:
                return
            why = f"after {exactly(self.idle)} without a cell (--idle)"
            self.run.take(events.GroupEnding(why=why))
        self._finish()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def end(self, why: str) -> None:
        """End all ranks and their programs. `why` continues "ended": `by %xla_shutdown`."""
        self._is_ended = True
        try:
            with self._turn_lock:
                if not self.run.state.ending:
                    self.run.take(events.GroupEnding(why=why))
            self._finish()
        except KeyboardInterrupt:  # the user no longer waits
            self.run.take(events.GroupEnding(why=why))
            self.run.stops_because(_STOP_REASON)
            self.run.take(events.SignalSent(number=signal.SIGKILL))
            self._engine.kill(self.run.name)
            self.run.join_end(KILL_PATIENCE)
            raise

    def _finish(self) -> None:
        self._cancel_timer()
        running = list(self._programs)
        for run in running:
            run.stop(_STOP_REASON)
        for run in running:
            run.join_end()
        self._engine.end(self.run.name)
        if not self.run.join_end(self.options.grace):
            self.run.stop(_STOP_REASON)
            self.run.join_end()

"""What a run says of that which its ranks have left running, before it is ended."""

from __future__ import annotations

from xla_nb import linux
from xla_nb.run.state import RunState
from xla_nb.wording import listed, ranks

_LINGERING = (
    "Threads, processes or `atexit` handlers of {ranks} were still running {seconds:g} s after the "
    "ranks had ended, and were ended. Wait for them in the function (`thread.join()`)."
)
_LEFT = (
    "Processes that ranks had started ({names}) had not ended {seconds:g} s after the ranks, and "
    "were ended. Wait for them in the function (`process.wait()`)."
)
_JOB_STOPPED = (
    "The process that had started the ranks was stopped (SIGSTOP; pid {pid}), and was ended "
    "{seconds:g} s after the ranks had returned."
)
_NOT_READY = (
    "{ranks} had run the cell, and were not ready for the next one {seconds:g} s later; the live "
    "ranks were ended."
)


def told(state: RunState, seconds: float, *, here: bool, lives: bool) -> list[str]:
    """Sentences on what has not ended `seconds` after the ranks. here: their processes are on this
    machine. lives: they are live ranks, and should have been ready for another program."""
    jobs = [host.job for host in state.hosts.values() if host.job] if here else []
    stopped = next((pid for pid in jobs if linux.is_stopped(pid)), None)
    if stopped is not None:  # nothing has ended by itself since then
        return [_JOB_STOPPED.format(pid=stopped, seconds=seconds)]
    every = state.ranks.values()
    if lives:
        who = ranks([rank.rank for rank in every]).capitalize()
        return [_NOT_READY.format(ranks=who, seconds=seconds)]
    alive = [rank.rank for rank in every if here and rank.pid and linux.is_alive(rank.pid)]
    sentences = [_LINGERING.format(ranks=ranks(alive), seconds=seconds)] if alive else []
    left = {name for host in state.hosts.values() for name in host.left}
    if left and all(rank.death is None for rank in every):  # else nobody could wait for them
        names = listed(sorted(left), most=5)
        sentences.append(_LEFT.format(names=names, seconds=seconds))
    return sentences

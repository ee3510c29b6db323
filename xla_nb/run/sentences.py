"""A run's state in sentences.

The rule: the first error leads, equal errors are told once with their ranks, and what is not
known is not said. Pure: the same lines serve the notebook, a terminal and a saved run.
"""

from __future__ import annotations

from dataclasses import dataclass

from xla_nb.run.state import RankState, RunState
from xla_nb.wording import cause_of_death, listed, ranks, several


@dataclass(frozen=True)
class RankError:
    """Why a rank has no result: `place` is the notebook's line, `traceback` may be empty."""

    rank: int
    kind: str
    message: str
    place: str
    traceback: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}" if self.message else self.kind

    @property
    def is_short(self) -> bool:
        """There is no more to say than `in_short` does."""
        return "\n" not in f"{self.traceback}{self.message}"

    @property
    def in_short(self) -> str:
        """Place and first line: `failed at Cell In[3], line 7: ValueError: boom`."""
        first, *more = str(self).splitlines() or [self.kind]
        said = f"{first} …" if more else first
        return f"failed at {self.place}: {said}" if self.place else f"failed: {said}"


def errors(state: RunState) -> dict[int, RankError]:
    """The error of every rank that failed or died; stopped ones are no errors of their own."""
    found = {}
    for rank in state.ranks.values():
        if rank.failure is not None:
            said = rank.failure
            found[rank.rank] = RankError(rank.rank, said.kind, said.message, said.place, said.text)
        elif rank.phase == "killed":
            found[rank.rank] = RankError(rank.rank, "Killed", death(rank), rank.place, "")
    return found


def death(rank: RankState) -> str:
    """Why a rank that did not end by itself is gone."""
    if rank.lost:
        return f"its host {rank.host} was lost: {rank.lost}"
    return cause_of_death(rank.death) if rank.death is not None else "its process is gone"


def headline(state: RunState) -> str:
    """One line: what ended the run, or how it went."""
    if state.refused is not None:
        where = f"{state.refused.host}: " if len(state.hosts) > 1 and state.refused.host else ""
        return f"{where}{state.refused.message}"
    found = errors(state)
    lost = _lost(state)
    if lost and (state.first_trouble is None or state.ranks[state.first_trouble].lost):
        return lost
    if state.first_trouble is not None and state.first_trouble in found:
        first = found[state.first_trouble]
        others = len(found) - 1
        more = f" (and {others} more)" if others else ""
        return f"rank {first.rank}{more} {first.in_short}{_absent(state, first.rank)}"
    if state.strays:
        return f"a process of the run {cause_of_death(state.strays[0].status)}"
    if state.stopping:
        return f"the run was stopped: {state.stopping}"
    phases = [rank.phase for rank in state.ranks.values()]
    if not phases:
        return "starting" if state.ended is None else "no rank was started"
    devices = sum(len(rank.devices) for rank in state.ranks.values())
    total = several(devices, "device") if devices else several(len(phases), "rank")
    words = [f"{phases.count(phase)} {phase}" for phase in dict.fromkeys(phases)]
    return f"{total} {phases[0]}" if len(words) == 1 else f"{total}: {', '.join(words)}"


def _lost(state: RunState) -> str:
    """The hosts that were lost, those with the same reason together; empty where none was."""
    by_reason: dict[str, list[str]] = {}
    for host in state.hosts.values():
        if host.lost:
            by_reason.setdefault(host.lost, []).append(host.name)
    said = []
    for why, names in by_reason.items():
        hosts = f"host {names[0]} was" if len(names) == 1 else f"hosts {listed(names, most=5)} were"
        numbers = [r.rank for r in state.ranks.values() if r.lost and r.host in names]
        it = "it" if len(names) == 1 else "them"
        said.append(f"{hosts} lost{f', and {ranks(numbers)} with {it}' if numbers else ''}: {why}")
    return "; ".join(said)


def _absent(state: RunState, rank: int) -> str:
    """Who had left a collective alone, where that is why a rank failed."""
    failure = state.ranks[rank].failure
    if failure is None or not failure.follows:
        return ""
    ended = failure.at
    gone = [
        other.rank
        for other in state.ranks.values()
        if other.phase == "finished" and other.ended is not None and other.ended <= ended
    ]
    return f" ({ranks(gone)} had returned and took no part in it)" if gone else ""


def details(state: RunState) -> list[str]:
    """The paragraphs below the headline: each error once, then what became of the others."""
    if state.refused is not None:
        return [state.refused.text] if state.refused.text else []
    paragraphs = []
    for group in groups(state):
        first = group[0]
        if len(group) == 1 and first.rank == state.first_trouble and first.is_short:
            continue  # the headline has said it all
        if first.traceback:
            paragraphs.append(f"{ranks(e.rank for e in group)}:\n{first.traceback}")
            others = differing(group)
            if others:
                said = "\n".join(f"  {line}" for line in others)
                paragraphs.append(f"the same with other words:\n{said}")
        else:
            paragraphs.append(f"{ranks(e.rank for e in group)}: {first}")
    stopped = [rank for rank in state.ranks.values() if rank.phase == "stopped"]
    if stopped:
        paragraphs.append(_stopped(stopped))
    return paragraphs


def groups(state: RunState) -> list[list[RankError]]:
    """Errors grouped by type and frames; the first failure leads its group, and it the others."""
    found: dict[str, list[RankError]] = {}
    for error in errors(state).values():
        failure = state.ranks[error.rank].failure
        key = failure.where if failure is not None else str(error)
        found.setdefault(key, []).append(error)
    ordered = [
        sorted(group, key=lambda error: error.rank != state.first_trouble)
        for group in found.values()
    ]
    return sorted(ordered, key=lambda group: group[0].rank != state.first_trouble)


def differing(group: list[RankError]) -> list[str]:
    """Of errors that are grouped, those in other words than the first, a line each."""
    return [f"rank {e.rank} {e.in_short}" for e in group if e.in_short != group[0].in_short]


def _stopped(stopped: list[RankState]) -> str:
    by_place: dict[str, list[int]] = {}
    for rank in stopped:
        by_place.setdefault(rank.place, []).append(rank.rank)
    told = [
        f"{ranks(numbers)} at {place}" if place else ranks(numbers)
        for place, numbers in by_place.items()
    ]
    return f"stopped: {'; '.join(told)}"

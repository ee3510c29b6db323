"""A run's state in sentences: the first error leads, equal errors appear once, with their ranks.

Pure functions, so that a notebook, a terminal and a saved run say the same.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass

from xla_nb import ansi
from xla_nb.messages.events import ProcessDied
from xla_nb.messages.exit_status import cause_in_short, cause_of_death, in_past
from xla_nb.monitor.stacks import alike
from xla_nb.monitor.state import RankState, RunState
from xla_nb.wording import (
    everybody,
    in_one_line,
    listed,
    ranks,
    several,
    spans,
)

_FULL = 300  # characters of an error that the headline shows in full, so that nothing else does
_LABEL_LENGTH, _MAX_CELLS = 60, 3  # characters of a cell's label; named cells
_MAX_NAMES = 5  # named variables


@dataclass(frozen=True)
class RankError:
    """The error of a rank without a result: `place` is the line in the notebook, `traceback` may be
    empty. For a rank whose process died, `kind` is "Died" and `message` is the cause."""

    rank: int
    kind: str
    message: str
    place: str
    traceback: str

    def __str__(self) -> str:
        if self.kind == DIED:
            return self.message
        return f"{self.kind}: {self.message}" if self.message else self.kind

    @property
    def first_line(self) -> str:
        """Kind and first line of the message: `ValueError: boom`."""
        first, *others = str(self).splitlines() or [self.kind]
        # A process that the rank started raised it: its traceback ends with the error itself.
        if any(line.endswith(_TRACEBACK) for line in others) and _ERROR.match(others[-1]):
            return f"{others[-1]} ({self.message.splitlines()[0].rstrip('.')})"
        return f"{first} …" if others else first

    @property
    def in_short(self) -> str:
        """Place and first line: `failed at Cell In[3], line 7: ValueError: boom`."""
        line = self.first_line
        if self.kind == DIED:
            return in_past(line)
        return f"failed at {self.place}: {line}" if self.place else f"failed: {line}"


_TRACEBACK, _ERROR = "Traceback (most recent call last):", re.compile(r"[\w.]+: ")
#: The kind of error of a rank whose process died.
DIED = "Died"
#: The kind of error of ranks that called different collectives; its first line says what each did.
MISMATCH = "CollectiveMismatch"


def errors(state: RunState) -> dict[int, RankError]:
    """The error of every rank that failed or died; stopped ranks have none."""
    by_rank = {}
    for n, rank in state.ranks.items():
        if (event := rank.failure) is not None:
            by_rank[n] = RankError(n, event.kind, event.message, event.place, event.text)
        elif rank.phase == "died":
            stack = rank.death.stack if rank.death is not None else ""
            by_rank[n] = RankError(n, DIED, death(state, rank), rank.place, stack)
    return by_rank


def death(state: RunState, rank: RankState) -> str:
    """The cause of death of a rank that did not end on its own."""
    if rank.lost:
        host = state.hosts.get(rank.host)
        return f"lost{f' with its host {rank.host}' if host and host.lost else ''}: {rank.lost}"
    if rank.death is None:
        return _cause_of_strays(state) if rank.pid is None else "ended for an unknown reason"
    if state.group is not None and rank.death.status >= 0:  # perhaps while it ran nothing
        return death_in_short(state, rank)
    # It reported where it was; a killed rank could not.
    is_known = rank.death.stack or rank.death.status == -signal.SIGINT
    where = f" at {rank.place}" if is_known and rank.place else ""
    return f"{_cause(rank.death)}{where}"


def death_in_short(state: RunState, rank: RankState) -> str:
    """The cause in a few words: `killed by SIGKILL`."""
    if rank.lost or rank.death is None:
        return death(state, rank)
    return cause_in_short(rank.death.status, rank.death.lack)


def _cause(died: ProcessDied) -> str:
    return cause_of_death(died.status, died.lack)


def _cause_of_strays(state: RunState) -> str:
    """The cause for a rank whose process never gave its number: that of all such, if the same."""
    causes = set(map(_cause, state.strays))
    return causes.pop() if len(causes) == 1 else "ended for an unknown reason"


@dataclass(frozen=True)
class Returned:
    """A value that ranks returned alike: a short repr, and for a small dict its numbers as text."""

    ranks: tuple[int, ...]
    text: str
    numbers: dict[str, str]

    @property
    def line(self) -> str:
        """`[0–3] returned (4, 375)`, like a line that these ranks printed."""
        return f"[{spans(self.ranks)}] returned {self.text}"


def returned(state: RunState) -> tuple[Returned, ...]:
    """The values that ranks returned, except None and displayed ones; known equals are grouped."""
    values = {
        event.rank: (event.preview, tuple(event.numbers.items()), event.digest)
        for rank in state.ranks.values()
        if rank.phase == "finished" and (event := rank.returned) is not None
        if event.preview not in ("", "None")
    }
    return tuple(
        Returned(
            who, ansi.plain(text), {ansi.plain(name): ansi.plain(one) for name, one in numbers}
        )
        for (text, numbers, _), who in alike(values).items()
    )


def headline(state: RunState, doing: Mapping[int, str] = {}, *, is_told: bool = False) -> str:
    """One line: what ended the run and what was wrong before, or how it is going. `doing`: the
    activities of ranks, where known better than by their phases. `is_told`: its errors have been
    shown already, so ranks are only counted."""
    text, top = _counts(state, doing) if is_told else _headline(state, doing), state.conclusion
    if top is not None and top.wrong and not state.ok and (state.stopping or state.troubled):
        text += f"; {ansi.plain(top.sentence)}"
    if not state.lost_group:
        return text
    subject = f"live {ranks(state.lost_group)} {'is' if len(state.lost_group) == 1 else 'are'}"
    return f"{text}; {'the live ranks are' if signal.SIGKILL in state.sent else subject} lost"


def found(state: RunState, *, calm: bool = False) -> str:
    """A problem of the run that its headline does not name; with `calm`, anything else of note."""
    top = state.conclusion
    is_omitted = top is None or top.calm != calm or (top.wrong and not state.ok)
    return "" if top is None or is_omitted else ansi.plain(top.sentence)


def leading(state: RunState) -> RankError | None:
    """The error that a headline names, with its line: the first one, if nothing was worse."""
    first = state.first_trouble
    if state.refused is not None or first is None or state.ranks[first].lost:
        return None
    return errors(state).get(first)


def _headline(state: RunState, doing: Mapping[int, str]) -> str:
    if state.refused is not None:
        where = f"{state.refused.host}: " if len(state.hosts) > 1 and state.refused.host else ""
        return f"{where}{state.refused.message}"
    by_rank = errors(state)
    if (first := leading(state)) is not None:
        return _failure_text(state, first, [error for error in by_rank.values() if error != first])
    if lost := _loss_text(state):
        return lost
    if state.strays:
        return f"A process of the run {in_past(_cause(state.strays[0]))}"
    if state.stopping and not state.ok and not state.ending:
        return f"{state.stopping}{_meanwhile_text(by_rank)}"
    if not state.ranks:
        return "Starting" if state.ended is None else "No rank was started"
    if state.group is not None:
        return _group_text(state, doing)
    counts = _counts(state, doing)
    return f"Stop requested after {counts}" if state.stopping else counts


def _counts(state: RunState, doing: Mapping[int, str]) -> str:
    """`4 ranks finished`, `4 ranks: 3 finished, 1 failed`."""
    phases = [doing.get(rank.rank, rank.phase) for rank in state.ranks.values()]
    devices = sum(len(rank.devices) for rank in state.ranks.values())
    total = several(devices, "device") if devices else several(len(phases), "rank")
    counts = [f"{phases.count(phase)} {phase}" for phase in dict.fromkeys(phases)]
    return f"{total} {phases[0]}" if len(counts) == 1 else f"{total}: {', '.join(counts)}"


def _group_text(state: RunState, doing: Mapping[int, str]) -> str:
    """`4 live ranks, idle`, or the cells in progress and the ranks that still run them."""
    devices = sum(len(rank.devices) for rank in state.ranks.values())
    subject = several(len(state.ranks), "live rank")
    subject += f" with {several(devices, 'device')}" if devices else ""
    if state.settled:
        during = listed((program.began.label for program in state.cut), most=_MAX_CELLS)
        return f"{subject} ended {state.ending}{f' during {during}' if state.cut else ''}".rstrip()
    if state.ending:
        return f"{subject} ending"
    if any(rank.phase == "starting" for rank in state.ranks.values()):
        return f"{subject} starting"
    running = [program.began for program in state.programs.running]
    if not running:
        return f"{subject}, idle"
    busy = [[rank for rank in began.ranks if doing.get(rank) != "idle"] for began in running]
    cells = [
        (in_one_line(began.label, _LABEL_LENGTH), ranks(members or began.ranks))
        for began, members in zip(running, busy, strict=True)
    ]
    if len(cells) == 1:
        return "{} is running on {}".format(*cells[0])
    return f"{listed([f'{label} on {who}' for label, who in cells], most=_MAX_CELLS)} are running"


def _meanwhile_text(by_rank: Mapping[int, RankError]) -> str:
    """`; rank 1 failed while it stopped`: for a run that was stopped when nothing was wrong."""
    if not by_rank:
        return ""
    failed = "died" if all(error.kind == DIED for error in by_rank.values()) else "failed"
    return f"; {ranks(by_rank)} {failed} while {'it' if len(by_rank) == 1 else 'they'} stopped"


def hang(state: RunState) -> str:
    """The verdict of the last hang report; empty if there is none, or the hang is over."""
    return state.current_hang.verdict if state.current_hang is not None else ""


def _failure_text(state: RunState, first: RankError, others: list[RankError]) -> str:
    """`Rank 1 failed at …; 3 others failed because of it`, `All 4 ranks failed (rank 1 first) at
    …`: ranks with the same error are counted together. Ranks that diverged are described by what
    they did."""
    same = [error for error in others if _is_same_error(state, first, error)]
    unlike = [error for error in others if error not in same]
    followers = [error for error in unlike if state.ranks[error.rank].follows]
    unrelated = [error for error in unlike if error not in followers]
    if first.kind == MISMATCH and not state.ranks[first.rank].follows:
        text = first.message.partition("\n")[0].rstrip(":")
    else:
        group = [first, *same]
        subject = several(len(group), "rank") if unlike else _of_all(len(group), len(state.ranks))
        text = _alike_text(group, subject) + _returned_text(state, first.rank)
    text = text.removesuffix(".") if followers or unrelated else text
    if followers:
        text += f"; {several(len(followers), 'other')} failed because of it"
    if len(unrelated) == 1:
        text += f"; rank {unrelated[0].rank} {unrelated[0].in_short}"
    elif unrelated:
        text += f"; {several(len(unrelated), 'other')} failed for other reasons"
    return text


def _of_all(count: int, ranks: int) -> str:
    return everybody(ranks).capitalize() if count == ranks else f"{count:,} of {ranks:,} ranks"


def _alike_text(group: list[RankError], subject: str) -> str:
    first = group[0]
    if len(group) == 1:
        return f"Rank {first.rank} {first.in_short}"
    place = f"at {first.place}" if first.place and first.kind != DIED else ""
    if not place:
        how = f"(rank {first.rank} first)"
    elif len({error.place for error in group}) == 1:
        how = f"(rank {first.rank} first) {place}"
    else:
        how = f"(rank {first.rank} first, {place})"
    return f"{subject} {'died' if first.kind == DIED else 'failed'} {how}: {first.first_line}"


def _is_same_error(state: RunState, first: RankError, other: RankError) -> bool:
    """Same type, and same frames or message; a consequence never matches its cause."""
    first_rank, other_rank = state.ranks[first.rank], state.ranks[other.rank]
    if first.kind != other.kind or first_rank.follows != other_rank.follows:
        return False
    frames = [rank.failure.where for rank in (first_rank, other_rank) if rank.failure is not None]
    return first.message == other.message or (len(frames) == 2 and frames[0] == frames[1])


def _loss_text(state: RunState) -> str:
    """Lost hosts, and ranks that were lost without their host, grouped by reason. Empty if there
    are none."""
    lost_hosts = {host.name: host.lost for host in state.hosts.values() if host.lost}
    lost = [rank for rank in state.ranks.values() if rank.lost]
    sentences = []
    for reason, names in alike(lost_hosts).items():
        who = f"Host {names[0]} was" if len(names) == 1 else f"Hosts {listed(names, most=5)} were"
        with_them = [rank.rank for rank in lost if rank.host in names]
        sentences.append(f"{who} lost{f' with {ranks(with_them)}' if with_them else ''}: {reason}")
    alone = {rank.rank: rank.lost for rank in lost if rank.host not in lost_hosts}
    for reason, numbers in alike(alone).items():
        was = "was" if len(numbers) == 1 else "were"
        sentences.append(f"{ranks(numbers).capitalize()} {was} lost: {reason}")
    return "; ".join(sentences)


def _returned_text(state: RunState, rank: int) -> str:
    """Ranks that had returned and were missing in a collective, if that is why a rank failed."""
    failure = state.ranks[rank].failure
    if failure is None or not failure.follows:
        return ""
    numbers = [
        other.rank
        for other in state.ranks.values()
        if other.phase == "finished" and other.ended is not None and other.ended <= failure.at
    ]
    return f" ({ranks(numbers)} had already returned)" if numbers else ""


@dataclass(frozen=True)
class Trouble:
    """Ranks that failed with the same error: the leading rank, then the others in order.

    first     the leading rank was the first of the run to fail
    follows   they failed because another rank had ended, which is reported
    told      the headline shows title and place, or the error that they follow
    text      its traceback, may be empty
    others    a line for each rank whose message differs
    """

    ranks: tuple[int, ...]
    first: bool
    title: str
    place: str
    text: str
    others: tuple[str, ...] = ()
    told: bool = False
    follows: bool = False
    kind: str = ""


def troubles(state: RunState) -> tuple[Trouble, ...]:
    """The errors, each once; the first failure leads its group, and that group the others."""
    lead = leading(state) if state.ended is not None or not hang(state) else None
    groups: dict[str, list[RankError]] = {}
    for error in sorted(errors(state).values(), key=lambda one: one.rank != state.first_trouble):
        failure = state.ranks[error.rank].failure
        key = failure.where if failure is not None else str(error)
        groups.setdefault(key, []).append(error)
    return tuple(_make_trouble(state, group, lead) for group in groups.values())


def _make_trouble(state: RunState, group: list[RankError], lead: RankError | None) -> Trouble:
    error, *others = group
    is_first = error.rank == state.first_trouble
    follows = not is_first and all(state.ranks[one.rank].follows for one in group)
    is_told = lead is not None and (
        error.rank == lead.rank or (error.kind == MISMATCH and error.first_line == lead.first_line)
    )
    text = error.traceback or (str(error) if "\n" in error.message else "")
    if is_told and str(error) == error.first_line[:_FULL]:
        text = text.removesuffix(str(error)).rstrip("\n")
    lines = [f"rank {one.rank} {one.in_short}" for one in others if one.in_short != error.in_short]
    return Trouble(
        ranks=(error.rank, *sorted(one.rank for one in others)),
        first=is_first,
        title=ansi.plain(error.first_line),
        place=error.place,
        text=ansi.clean(text),
        others=tuple(map(ansi.plain, lines)),
        told=is_told or follows,
        follows=follows,
        kind=error.kind,
    )


def details(state: RunState) -> list[str]:
    """The paragraphs below the headline: each error once, then where the others were stopped."""
    if state.refused is not None:
        return [state.refused.text] if state.refused.text else []
    paragraphs = []
    for trouble in troubles(state):
        subject = ranks(trouble.ranks)
        if trouble.kind == DIED or not trouble.text:
            # For the first to fail, alone and without a text, the headline says everything.
            if trouble.text or not trouble.first or trouble.ranks[1:]:
                paragraphs.append(f"{subject}: {trouble.title}\n{trouble.text}".rstrip())
            continue
        paragraphs.append(f"{subject}:\n{trouble.text}")
        if trouble.others:
            lines = "\n".join(f"  {line}" for line in trouble.others)
            paragraphs.append(f"Same error, different message:\n{lines}")
    stopped = [rank for rank in state.ranks.values() if rank.phase == "stopped"]
    if stopped:
        paragraphs.append(_stopped_text(stopped))
    return paragraphs


def _stopped_text(stopped: list[RankState]) -> str:
    places = alike({rank.rank: _stop_place(rank) for rank in stopped})
    return f"Stopped: {'; '.join(f'{ranks(numbers)}{place}' for place, numbers in places.items())}"


def _stop_place(rank: RankState) -> str:
    """A rank that was ended by force may have been elsewhere than where an interrupt reached it."""
    if not rank.place:
        return ""
    by_force = rank.death is not None and rank.only_interrupted
    return f"{', interrupted' if by_force else ''} at {rank.place}"


def changes(state: RunState) -> str:
    """Names the notebook's lists and dicts that ranks changed, which are not sent back; empty
    unless all ranks have finished."""
    if state.changed is None or state.stopping or not state.ok:
        return ""
    names = state.changed.names
    it, copy = ("it", "copy is unchanged") if len(names) == 1 else ("them", "copies are unchanged")
    advice = f"Return {it} from the function."
    if state.changed.in_cell:
        advice = f"End the cell with {it} to get {it}."
    shown = listed([f"`{name}`" for name in names], most=_MAX_NAMES)
    return f"Ranks changed {shown}; the notebook's {copy}. {advice}"

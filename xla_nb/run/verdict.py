"""What keeps a run from getting on, in one sentence; and its ranks grouped by where they are.

Pure. It says what is known and no more: only a rank that tells for whom it waits is said to wait
for another. On a TPU, where none can, ranks are told by where they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from xla_nb.messages.events import StackGroup
from xla_nb.record.sample import INPUT
from xla_nb.run.stacks import Answer, alike
from xla_nb.run.standing import Standing
from xla_nb.run.state import ENDED
from xla_nb.wording import in_one_line, listed, ranks, shortened

_MOST = 4  # clauses of a verdict; descriptions of the ranks that others wait for; spans of ranks
_GROUPS, _STACK = 16, 4000  # groups with a stack; characters of one
_LONGEST = 60  # characters of a call or an operation
_OURS = "/xla_nb/rank/"  # the iterator of `xla_nb.progress`, say, and what calls the entry
_FRAME = re.compile(r'^  File "(.*)", line (\d+), in (.+)$')
_ENDS = {
    "finished": "returned",
    "failed": "failed",
    "died": "died",
    "stopped": "been stopped",
}


# ---------------------------------------------------------------- the verdict


def verdict(standings: Iterable[Standing], after: float, jobs: Iterable[str] = ()) -> str:
    """The sentence, without a full stop. Ranks without progress for `after` seconds are hung (0:
    none is), and those that wait for a stopped process, or for the lock of a rank that has ended.
    `jobs`: pids of jobs that are stopped, with their hosts where there are several."""
    known = {standing.rank: standing for standing in standings}
    said = _Verdict(known, after or float("inf"))
    clauses = [
        f"the process that started the ranks is stopped (SIGSTOP; pid {job}): {_continue([job])}"
        for job in jobs
    ]
    clauses += [*said.stopped(), *said.locked(), *said.collectives()]
    rest = said.others()
    if rest:
        clauses.append(f"{'also no' if clauses else 'no'} progress for {rest[0]}")
        clauses += rest[1:]
    if len(clauses) > _MOST:
        clauses[_MOST:] = [f"{len(clauses) - _MOST} more places are in the report"]
    sentence = _brief("; ".join(clauses), (one.place for one in known.values()))
    return sentence[:1].upper() + sentence[1:]


def _brief(sentence: str, places: Iterable[str]) -> str:
    """The sentence, in which a cell or file is named only where it is not the one named before."""
    files = {place.rpartition(", line ")[0] for place in places} - {""}
    last = ""

    def named(match: re.Match[str]) -> str:
        nonlocal last
        known, last = match[1] == last, match[1]
        return " at line " if known else match[0]

    either = "|".join(map(re.escape, sorted(files, key=len, reverse=True)))
    return re.sub(f" at ({either}), line ", named, sentence) if files else sentence


@dataclass
class _Verdict:
    ranks: Mapping[int, Standing]
    after: float

    def __post_init__(self) -> None:
        self._told: set[int] = set()

    def stopped(self) -> list[str]:
        found = [one for one in self._running() if one.pid is not None]
        self._told |= _numbers(found)
        return [
            f"{_who(group)} {_phrase(group)}: {_continue(_pids(group))}"
            for group in _grouped(found)
        ]

    def locked(self) -> list[str]:
        """Those who wait for the lock, by the rank that holds it and by line."""
        waiting = [one for one in self._running() if one.waits_for_lock and one.pid is None]
        clauses = []
        for group in _grouped(one for one in waiting if self._is_due(one)):
            self._told |= _numbers(group)
            clauses.append(self._locked(group))
        return clauses

    def _locked(self, group: Sequence[Standing]) -> str:
        first, place = group[0], _at(group[0])
        holder = self.ranks.get(first.missing[0]) if first.missing else None
        been = f"{_who(group)} {_have(group)} waited {lasting(_since(group))} for"
        if holder is None:
            return f"{been} `lock`{place}, and it is not known who holds it"
        if holder.rank == first.rank:
            return f"{been} `lock`{place}, which it holds itself"
        if holder.phase in ENDED:
            been = f"{_who(group)} {'waits' if len(group) == 1 else 'wait'} for"
        does = "" if holder.rank in self._told else f" and {self._does([holder])}"
        self._told.add(holder.rank)
        return f"rank {holder.rank} holds `lock`{does}; {been} it{place}"

    def collectives(self) -> list[str]:
        """Those who wait in a collective, by operation, line and whom they wait for."""
        waiting = [
            one
            for one in self._running()
            if one.in_collective and one.rank not in self._told and self._is_due(one)
        ]
        groups = _grouped(waiting)
        self._told |= _numbers(waiting)
        return [f"{_who(group)} {_phrase(group)}{self._whose(group[0])}" for group in groups]

    def _whose(self, waiting: Standing) -> str:
        """What the ranks do that are waited for, where it has not been said."""
        missing = [self.ranks[rank] for rank in waiting.missing if rank in self.ranks]
        missing = [one for one in missing if one.rank not in self._told]
        self._told |= _numbers(missing)
        groups = _grouped(missing)
        if not groups:
            return ""
        if len(groups) == 1 and len(missing) == len(waiting.missing):
            return f", which {self._does(groups[0])}"
        each = [f"{_who(group)} {self._does(group)}" for group in groups]
        more = [f"{len(each) - _MOST} more are in the report"] if each[_MOST:] else []
        return f" ({'; '.join([*each[:_MOST], *more])})"

    def _does(self, group: Sequence[Standing]) -> str:
        """What they do; of some that are not hung, also when they last got on."""
        quiet = min(one.quiet for one in group)
        lately = f" and last made progress {lasting(quiet)} ago" if quiet < self.after else ""
        over = group[0].phase in ENDED or group[0].pid is not None
        return f"{_phrase(group)}{'' if over else lately}"

    def others(self) -> list[str]:
        """The rest of the hung: those in the fewest first, as they are the odd ones out."""
        found = [
            one for one in self._running() if one.quiet >= self.after and one.rank not in self._told
        ]
        groups = sorted(_grouped(found), key=lambda group: (len(group), group[0].rank))
        self._told |= _numbers(found)
        clauses = [f"{_who(group)} {_phrase(group)}" for group in groups]
        if clauses:
            clauses[0] = f"{lasting(min(one.quiet for one in found))}: {clauses[0]}"
        return clauses

    def _running(self) -> list[Standing]:
        return [one for one in self.ranks.values() if one.phase not in ENDED]

    def _is_due(self, waiting: Standing) -> bool:
        """It is hung, or what it waits for will not come by itself."""
        others = [self.ranks[rank] for rank in waiting.missing if rank in self.ranks]
        lost = waiting.waits_for_lock and any(one.phase in ENDED for one in others)
        stuck = any(one.quiet >= self.after or one.rank in self._told for one in others)
        return waiting.quiet >= self.after or lost or stuck


# ---------------------------------------------------------------- what ranks do, in words


def _phrase(group: Sequence[Standing]) -> str:
    """What ranks do that do the same: `is in `queue.get` at Cell In[3], line 9`."""
    one, have = group[0], _have(group)
    if one.phase in ENDED:
        return f"{have} {_ENDS[one.phase]}"
    if one.pid is not None:
        where = f" on {one.host}" if one.host else ""
        return f"{_are(group)} stopped (SIGSTOP; pid {', '.join(_pids(group))}{where})"
    if one.phase == "starting":
        return f"{have} been joining the runtime for {lasting(_since(group))}"
    return _waits(group) if one.activity == "waiting" else _runs(group)


def _waits(group: Sequence[Standing]) -> str:
    one, at = group[0], _at(group[0])
    waited = f"{_have(group)} waited {lasting(_since(group))}"
    if one.waits_for_lock:
        whose = f", which {ranks(one.missing)} holds" if one.missing else ""
        return f"{waited} for `lock`{at}{whose}"
    if one.operation == INPUT:
        return f"{waited} for an answer{at}"
    whom = f" for {ranks(one.missing)}" if one.missing else " while data is transferred"
    return f"{waited} in {_operation(one)}{at}{whom}"


def _runs(group: Sequence[Standing]) -> str:
    one, at, are = group[0], _at(group[0]), _are(group)
    inside = f" in `{one.call}`" if one.call else ""
    if one.activity == "compiling":
        return f"{_have(group)} been compiling for {lasting(_since(group))}{at}"
    if one.returned:
        return f"{are} sending {'its result' if len(group) == 1 else 'their results'}{at}"
    if one.unheard:
        silent = f"{are} not responding, probably blocked in native code"
        return f"{silent}, last seen{at or ' at an unknown line'}"
    if one.computes:
        share = min(each.cpu or 0.0 for each in group)
        return f"{are} computing{inside}{at} ({100 * share:.0f} % of a CPU)"
    return f"{are}{inside}{at or ('' if inside else ' at an unknown line')}"


def _pids(group: Sequence[Standing]) -> list[str]:
    return list(dict.fromkeys(str(one.pid) for one in group))


def _continue(pids: Sequence[str]) -> str:
    it = "it" if len(pids) == 1 else "them"
    numbers = " ".join(pid.partition(" ")[0] for pid in pids)
    return f"continue {it} with `kill -CONT {numbers}`, or stop the run"


def lasting(seconds: float) -> str:
    """A duration, rounded down: `45 s`, `5 min`, `2 h 05 min`."""
    if seconds < 60:
        return f"{int(seconds)} s"
    minutes = int(seconds) // 60
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def _operation(one: Standing) -> str:
    """`all_reduce` of `all_reduce sum f32[2]`."""
    return in_one_line(one.operation.partition(" ")[0], _LONGEST)


def _at(one: Standing) -> str:
    return f" at {one.place}" if one.place else ""


def _who(group: Sequence[Standing]) -> str:
    return ranks(one.rank for one in group)


def _are(group: Sequence[Standing]) -> str:
    return "is" if len(group) == 1 else "are"


def _have(group: Sequence[Standing]) -> str:
    return "has" if len(group) == 1 else "have"


def _since(group: Sequence[Standing]) -> float:
    return min(one.lasting for one in group)


def _numbers(group: Iterable[Standing]) -> set[int]:
    return {one.rank for one in group}


def _grouped(standings: Iterable[Standing]) -> list[list[Standing]]:
    """Those that do the same at the same place together."""
    by_rank = {one.rank: one for one in standings}
    found = alike({rank: _kind(one) for rank, one in by_rank.items()})
    return [[by_rank[rank] for rank in numbers] for numbers in found.values()]


def _kind(one: Standing) -> Standing:
    """The same for all that are said to do the same, whatever their times are."""
    stopped = one.pid if one.pid is None else 0
    unheard = one.unheard and one.activity == "running"  # of those that wait nothing is said of it
    own = replace(
        one,
        rank=0,
        quiet=0.0,
        lasting=0.0,
        pid=stopped,
        cpu=float(one.computes),
        unheard=unheard,
    )
    if stopped is None:
        return replace(own, host="")
    return replace(own, place="", call="", operation="", missing=(), activity="running")


# ---------------------------------------------------------------- where they are


def call_at(place: str, stack: str) -> str:
    """What the notebook's line `place` has called: `queue.get`, or the line's text if no Python.

    Without such a line it is the innermost function. `stack` has the innermost frame first."""
    cell = place.rpartition(", line ")[0]
    inner = innermost = ""
    lines = stack.splitlines()
    for number, line in enumerate(lines):
        frame = _FRAME.match(line)
        if frame is not None and frame[1] == cell:
            text = lines[number + 1].strip() if number + 1 < len(lines) else ""
            return inner or in_one_line(text, _LONGEST).replace("`", "'")
        if frame is not None and _OURS not in frame[1]:
            inner = f"{_module(frame[1])}.{frame[3]}"
            innermost = innermost or inner
    return innermost


def _module(file: str) -> str:
    """`queue` of a file, `torch_xla` of a package's `__init__.py`."""
    folder, name = file.rsplit("/", 2)[-2:] if file.count("/") > 1 else ("", file)
    stem = name.rpartition("/")[2].removesuffix(".py")
    return folder if stem == "__init__" and folder else stem


def groups(standings: Iterable[Standing], answers: Mapping[int, Answer]) -> list[StackGroup]:
    """Where the running ranks are: those whose processes are stopped first, those that nobody waits
    with, then the fewest. Beyond some groups ranks are told without their stack."""
    running = {one.rank: one for one in standings if one.phase not in ENDED}
    known = {rank: (_kind(one), answers.get(rank)) for rank, one in running.items()}
    found = []
    for (kind, answer), numbers in alike(known).items():
        group = [running[rank] for rank in numbers]
        place = answer.place if answer is not None and answer.place else kind.place
        notes = [_note(group), answer.note if answer is not None else "no answer"]
        stack = shortened(answer.stack, _STACK) if answer is not None else ""
        found.append(StackGroup(numbers, place, stack, "; ".join(filter(None, notes))))

    def oddness(group: StackGroup) -> tuple[bool, bool, int, tuple[int, ...]]:
        one = running[group.ranks[0]]
        waits = one.activity == "waiting"
        return one.pid is None, waits, len(group.ranks), group.ranks

    found.sort(key=oddness)
    return [*found[:_GROUPS], *(replace(group, stack="") for group in found[_GROUPS:])]


def _note(group: Sequence[Standing]) -> str:
    """What they do there beside their stack; the collective as it is."""
    one = group[0]
    if one.in_collective and one.pid is None:
        if one.operation == INPUT:
            return f"waiting {lasting(_since(group))} for an answer in the notebook"
        whom = f" for {ranks(one.missing)}" if one.missing else ""
        return f"waiting {lasting(_since(group))} in {one.operation}{whom}"
    if one.pid is not None or one.phase == "starting" or one.activity != "running" or one.computes:
        return _phrase([replace(each, place="", call="") for each in group])
    return f"no progress for {lasting(min(each.quiet for each in group))}"


def why_over(before: Iterable[int], standings: Iterable[Standing], stopped: Iterable[int]) -> str:
    """What has ended a hang of the ranks `before`; of these `stopped` were stopped."""
    now = {one.rank: one for one in standings}
    ended = [rank for rank in before if rank in now and now[rank].phase in ENDED]
    on = [rank for rank in before if rank not in ended]
    said = []
    if ended:
        said.append(f"{ranks(ended, _MOST)} {'has' if len(ended) == 1 else 'have'} ended")
    again = [rank for rank in on if rank in set(stopped)]
    if again:
        said.append(f"{ranks(again, _MOST)} {'is' if len(again) == 1 else 'are'} no longer stopped")
    moved = [rank for rank in on if rank not in again]
    if moved:
        said.append(f"{ranks(moved, _MOST)} went on")
    sentence = listed(said)
    return sentence[:1].upper() + sentence[1:]

"""Whether a cell that is run again on new live ranks returns what it had returned before.

By the pickles of the results: what a cell returns is not kept for that, and opening it would need
its modules in the notebook.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from xla_nb.protocol import parcel
from xla_nb.run.run import Run
from xla_nb.wording import ranks

_ANOTHER = "{label} returned something else on {ranks} than before{how}"
_UNKNOWN = "The results of {label} were not compared with those of before ({ranks}): {why}."

_NONE = "None"  # in place of a digest


@dataclass(frozen=True)
class Returned:
    """A rank's result: `digest` is empty where it is not known, for the reason `why`."""

    digest: str
    preview: str
    why: str = ""


def returned(run: Run) -> dict[int, Returned]:
    """What each rank of a run that has ended well returned."""
    return {number: _returned(run, number) for number in sorted(run.state.ranks)}


def _returned(run: Run, rank: int) -> Returned:
    state, path = run.state.ranks[rank], run.record.result(rank)
    preview = state.preview
    if state.result == 0:
        return Returned(_NONE, preview)
    try:
        digest = parcel.digest(path)
    except (OSError, parcel.Malformed, parcel.Unopened) as problem:
        return Returned("", preview, f"{problem}")
    why = "" if digest else f"they are larger than {parcel.MOST_COMPARED >> 20} MiB"
    return Returned(digest, preview, why)


def difference(label: str, before: Mapping[int, Returned], now: Mapping[int, Returned]) -> str:
    """What differs, as a sentence without a full stop; empty if nothing is known to."""
    changed = [
        rank
        for rank, old in before.items()
        if rank in now and old.digest and now[rank].digest and now[rank].digest != old.digest
    ]
    if not changed:
        return ""
    old, new = before[changed[0]].preview, now[changed[0]].preview
    how = f": {new}, not {old}" if old != new else ""
    return _ANOTHER.format(label=label, ranks=ranks(changed), how=how)


def not_compared(label: str, before: Mapping[int, Returned], now: Mapping[int, Returned]) -> str:
    """A sentence on results that could not be compared; empty if all could."""
    every = [one for rank in before if rank in now for one in (before[rank], now[rank])]
    why = next((one.why for one in every if one.why), "")
    unknown = [r for r in before if r in now and (before[r].why or now[r].why)]
    return _UNKNOWN.format(label=label, ranks=ranks(unknown), why=why) if why else ""

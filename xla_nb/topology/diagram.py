"""`%xla_topology`: show this machine's chips and their ranks as text."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xla_nb.errors import UsageError
from xla_nb.topology import tpu_types
from xla_nb.topology.chips import (
    SIMULATE,
    SIMULATED,
    accelerator_type,
    choose_device,
    count_chips,
    devices_per_chip,
    process_bounds,
)
from xla_nb.wording import several, without_middle

WIDTH = 100
_MAX_RANKS = 1024

_CHIPS = (
    "[ ] is a chip and its process, with its rank numbers. Ranks are numbered in process order "
    "here; on the TPU, libtpu assigns the ordinals, which may differ."
)
_CORES = "[ ] is a simulated chip and its process, with its rank number."


@dataclass(frozen=True)
class Diagram:
    """`str` gives lines of at most WIDTH characters. `processes`: the ranks of each process."""

    title: str
    processes: Sequence[range]
    note: str

    def __str__(self) -> str:
        digits = len(str(self.processes[-1][-1]))
        chips = (f"[{' '.join(f'{rank:{digits}}' for rank in ranks)}]" for ranks in self.processes)
        line = without_middle(f"slice 0  localhost  {''.join(chips)}", WIDTH)
        note = textwrap.fill(self.note, WIDTH, break_on_hyphens=False)
        return "\n\n".join([textwrap.fill(self.title, WIDTH), line, note])


def here(environ: Mapping[str, str], n: int | None) -> Diagram:
    """The diagram of this machine: its chips, or a simulated host. Raises UsageError if n is not
    possible, or too many to draw."""
    if n and n > _MAX_RANKS:
        raise UsageError(f"{several(n, 'rank')} are too many to draw. Draw at most {_MAX_RANKS:,}.")
    chips = count_chips()
    if choose_device(environ, chips) == "CPU":
        tpu = tpu_types.simulated(environ.get(SIMULATE, ""), n)
        kind = f"simulated {tpu.accelerator}" if tpu else "simulated as a CPU"
        where = "on this machine" if chips else "on this machine, which has no TPU"
        return _draw(tpu.ranks if tpu else n or SIMULATED, None, kind, where)
    accelerator = accelerator_type(environ)
    if process_bounds(accelerator, chips, n) and accelerator:
        all_chips = tpu_types.chips_per_host(accelerator, 1)
        chips = n // devices_per_chip(accelerator) if n else all_chips
    return _draw(chips, accelerator, accelerator or "TPU", "this machine")


def _draw(count: int, accelerator: str | None, kind: str, where: str) -> Diagram:
    """The diagram of `count` processes, whose ranks are numbered in process order."""
    per_chip = devices_per_chip(accelerator)
    processes = [range(index * per_chip, (index + 1) * per_chip) for index in range(count)]
    title = f"{several(count * per_chip, 'rank')} on 1 host in 1 slice, {kind}: {where}"
    return Diagram(title, processes, _CHIPS if accelerator or kind == "TPU" else _CORES)

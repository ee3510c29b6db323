"""`%xla_topology`: show this machine's chips and their ranks as text."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

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


def here(environ: Mapping[str, str], n: int | None) -> str:
    """The diagram of this machine: its chips, or a simulated host; lines of at most WIDTH
    characters. Raises UsageError if n is not possible, or too many to draw."""
    if n and n > _MAX_RANKS:
        raise UsageError(f"{several(n, 'rank')} are too many to draw. Draw at most {_MAX_RANKS:,}.")
    chips = count_chips()
    if choose_device(environ, chips) == "CPU":
        tpu = tpu_types.simulated(environ.get(SIMULATE, ""), n)
        kind = f"simulated {tpu.accelerator}" if tpu else "simulated as a CPU"
        where = "on this machine" if chips else "on this machine, which has no TPU"
        return _draw(tpu.ranks if tpu else n or SIMULATED, 1, f"{kind}: {where}", _CORES)
    accelerator = accelerator_type(environ)
    process_bounds(accelerator, chips, n)  # raises UsageError if n is not possible
    per_chip = devices_per_chip(accelerator)
    title = f"{accelerator or 'TPU'}: this machine"
    return _draw(n // per_chip if n else chips, per_chip, title, _CHIPS)


def _draw(count: int, per_chip: int, title: str, note: str) -> str:
    """The diagram of `count` processes, whose ranks are numbered in process order."""
    total = count * per_chip
    digits = len(str(total - 1))
    processes = [range(first, first + per_chip) for first in range(0, total, per_chip)]
    chips = (f"[{' '.join(f'{rank:{digits}}' for rank in ranks)}]" for ranks in processes)
    heading = textwrap.fill(f"{several(total, 'rank')} on 1 host in 1 slice, {title}", WIDTH)
    line = without_middle(f"slice 0  localhost  {''.join(chips)}", WIDTH)
    return "\n\n".join([heading, line, textwrap.fill(note, WIDTH, break_on_hyphens=False)])

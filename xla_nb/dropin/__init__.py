"""Programs that launch by themselves: what they call in a notebook launches as `xla_nb.spawn` does.

The launchers of torch_xla and accelerate get other code, and stay the same functions: names that
were bound to them before, and libraries that hold them, launch with it too. Scripts have them as
they are, unless they call `xla_nb.install()`; on ranks they refuse (rank/entries).
"""

from __future__ import annotations

import sys

from xla_nb import old_names
from xla_nb.dropin import answers, launchers
from xla_nb.pickling import multiprocess
from xla_nb.process_state import absl_flags
from xla_nb.rank.entries import is_rank


def install() -> None:
    """Let `xmp.spawn`, `torch_xla.launch` and accelerate's `notebook_launcher` launch as `spawn`
    does, old names of torch_xla work, and ranks share locks and queues of multiprocessing that are
    made from then on. `%load_ext xla_nb` does so in a notebook; call it in scripts, before they
    launch. On a rank, which cannot launch, it does nothing."""
    if is_rank():
        return
    absl_flags.let_pickle_have_them()
    multiprocess.named().turn_on()
    launchers.of_this_process().turn_on()
    answers.turn_on()
    old_names.install(lambda notice: print(notice, file=sys.stderr))


def uninstall() -> None:
    """Give these functions back what they did."""
    launchers.of_this_process().turn_off()
    answers.turn_off()
    old_names.uninstall()

"""Programs with launch calls of their own: in a notebook, these launch as `xla_nb.spawn` does.

The launchers of torch_xla and accelerate get new code but stay the same functions, so that names
bound earlier, and libraries that hold them, launch with it too. In scripts they are unchanged
unless the script calls `xla_nb.install()`; on ranks they refuse (rank/entries).
"""

from __future__ import annotations

import sys

from xla_nb import old_names
from xla_nb.dropin import answers, launchers
from xla_nb.pickling import multiprocess
from xla_nb.process_state import absl_flags
from xla_nb.rank.entries import is_rank


def install() -> None:
    """Make `xmp.spawn`, `torch_xla.launch` and accelerate's `notebook_launcher` launch as `spawn`
    does, old names of torch_xla work, and ranks share multiprocessing locks and queues created from
    then on. In a notebook, `%load_ext xla_nb` does this; a script calls it before it launches. On a
    rank, which cannot launch, it does nothing."""
    if is_rank():
        return
    absl_flags.let_pickle_have_them()
    multiprocess.named().turn_on()
    launchers.of_this_process().turn_on()
    answers.turn_on()
    old_names.install(lambda notice: print(notice, file=sys.stderr))


def uninstall() -> None:
    """Restore the original functions; old names of torch_xla stay."""
    launchers.of_this_process().turn_off()
    answers.turn_off()

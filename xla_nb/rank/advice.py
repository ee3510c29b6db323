"""What to do about errors of libraries whose own words mislead in a rank."""

from __future__ import annotations

import contextlib

from xla_nb.protocol import hostile

#: (name of the error, what its message has in it): what to do.
_ADVICE = {
    ("builtins.EOFError", "EOF when reading a line"): (
        "xla_nb: There is no keyboard here. Call input() in the function that runs on ranks, which "
        "asks in the notebook, or ask before the launch."
    ),
    ("bdb.BdbQuit", ""): (
        "xla_nb: Ranks have no keyboard, so breakpoint() and pdb end at once. Call the function in "
        "the notebook to step through it, or print() what you look for."
    ),
    ("builtins.RuntimeError", "Cannot re-initialize CUDA in forked subprocess"): (
        "xla_nb: Ranks are forked whatever `start_method` is, and have XLA devices, no CUDA ones: "
        'take torch_xla.device() or "xla" where the program names "cuda".'
    ),
}


def add_to(error: BaseException) -> None:
    """Note below an error of a rank what to do, where that is known."""
    with contextlib.suppress(Exception):  # an error may refuse notes
        own = f"{hostile.module_of(type(error))}.{hostile.name_of(type(error))}"
        message = hostile.message_of(error)
        for (kind, words), advice in _ADVICE.items():
            if own == kind and words in message:
                error.add_note(advice)

"""What ranks had too little of, by what they said when they failed: a sentence with what to do.

Native code and Python name a system call, not the limit that has been reached.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from xla_nb.linux import shortage
from xla_nb.run.state import RankState, RunState

_SHARED_MEMORY = (
    "/dev/shm, where multiprocessing and DataLoader keep locks and data, is full. Free some space, "
    "or give the container more (`--shm-size`)."
)
#: All words of a sign must be there.
_SIGNS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("can't start new thread",), shortage(errno.EAGAIN)),
    (("pthread_create() failed",), shortage(errno.EAGAIN)),
    (("Resource temporarily unavailable", "fork"), shortage(errno.EAGAIN)),
    (("Too many open files in system",), shortage(errno.ENFILE)),
    (("Too many open files",), shortage(errno.EMFILE)),
    (("std::bad_alloc",), shortage(errno.ENOMEM)),
    (("Cannot allocate memory",), shortage(errno.ENOMEM)),
    (("SemLock", "No space left on device"), _SHARED_MEMORY),
    (("insufficient shared memory (shm)",), _SHARED_MEMORY),  # torch's, of a DataLoader's worker
    (("unable to write to file </torch_",), _SHARED_MEMORY),
)


def told(state: RunState, stderr: Callable[[int], str]) -> str:
    """The sentence; empty where nobody has said that anything was short, or the error has it.

    stderr: the end of what a rank has written there."""
    for rank in state.ranks.values():
        text = _last_words(rank, stderr)
        for words, sentence in _SIGNS:
            if all(word in text for word in words):
                return "" if sentence in text else sentence
    return ""


def _last_words(rank: RankState, stderr: Callable[[int], str]) -> str:
    """Of a rank that died, all that it could say; of others their error, and what a worker said
    whose death is the error."""
    if rank.failure is not None:
        workers = stderr(rank.rank) if "DataLoader worker" in rank.failure.message else ""
        return f"{rank.failure.text}\n{rank.failure.message}\n{workers}"
    if rank.phase in ("starting", "died"):
        return stderr(rank.rank)
    return ""

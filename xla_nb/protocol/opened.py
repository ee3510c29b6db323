"""An open file of the notebook's process, which another process of its machine opens again."""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from typing import TypeAlias

#: A file's device and inode.
Identity: TypeAlias = tuple[int, int]

#: What is said of a file that cannot be opened again.
GONE = "the notebook has closed it, or runs on another machine"


class Descriptor(int):
    """The number of an open file, which is no value: whoever opens the file has another one."""


@dataclass(frozen=True)
class File:
    """A file by its path, opened for `access` (os.O_RDONLY, O_WRONLY or O_RDWR).

    The path may be another file's by then, or of another machine: `identity` tells.
    """

    path: str
    access: int
    identity: Identity

    @classmethod
    def of(cls, fd: int) -> File:
        """An open file of this process, also one that no folder has any longer."""
        access = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE
        return cls(f"/proc/{os.getpid()}/fd/{fd}", access, identity(fd))

    def detach(self) -> Descriptor:
        """Open it; multiprocessing calls this where it would receive a descriptor.

        Raises FileNotFoundError if it is gone.
        """
        try:
            fd = os.open(self.path, self.access | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as problem:
            raise FileNotFoundError(GONE) from problem
        if identity(fd) != self.identity:
            os.close(fd)
            raise FileNotFoundError(GONE)
        os.set_blocking(fd, True)
        return Descriptor(fd)


def identity(fd: int) -> Identity:
    """Of an open file."""
    status = os.fstat(fd)
    return status.st_dev, status.st_ino

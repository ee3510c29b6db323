"""Files and folders of one user: made so that nobody else can read them, opened with suspicion.

A record has pickles, which execute code when they are opened, and what ranks printed. Every file
and folder of a home is made here, and every file of a record is opened for reading here.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

_WRITABLE = stat.S_IWGRP | stat.S_IWOTH


def own_folder(path: Path) -> None:
    """Make a folder this user's alone: with its parents if it is missing, by its mode if others can
    look into it. Raises OSError, with a sentence where it belongs to somebody else."""
    try:
        status = path.stat()
    except FileNotFoundError:
        path.mkdir(0o700, parents=True, exist_ok=True)
        status = path.stat()
    if status.st_uid != os.geteuid():
        raise PermissionError(_belongs(path, status.st_uid))
    if status.st_mode & 0o777 != 0o700:
        with contextlib.suppress(OSError):  # of a file system that has no modes
            path.chmod(0o700)


def writing(path: str | os.PathLike[str], flags: int = os.O_WRONLY | os.O_TRUNC) -> int:
    """Open a file for writing; gives the descriptor. It is made if it is missing, and for nobody
    else. Raises OSError."""
    return os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, 0o600)


def write(path: Path, content: bytes) -> None:
    """Write a whole file. Raises OSError."""
    with os.fdopen(writing(path), "wb") as file:
        file.write(content)


def touch(path: str | os.PathLike[str]) -> None:
    """Make a file, or give it the time of now. Raises OSError."""
    with os.fdopen(writing(path, os.O_WRONLY), "wb") as file:
        os.utime(file.fileno())


def reading(path: str | os.PathLike[str]) -> int:
    """Open a plain file for reading; gives the descriptor. Follows no symbolic link and never waits
    for a writer. Raises OSError, also for what is no plain file."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "Not a plain file", os.fspath(path))
    return fd


def read(path: Path) -> bytes:
    """The content of a plain file. Raises OSError."""
    with os.fdopen(reading(path), "rb") as file:
        return file.read()


def part(path: str | os.PathLike[str], offset: int, most: int) -> bytes:
    """At most so many bytes of a growing file from an offset on; none where there is no file yet.
    Raises OSError."""
    try:
        fd = reading(path)
    except FileNotFoundError:
        return b""
    try:
        return os.pread(fd, most, offset)
    finally:
        os.close(fd)


def why_not_ours(path: Path) -> str:
    """Why another user may have written a file, or into a folder; empty if no other user can.

    Raises OSError."""
    status = path.lstat()
    if status.st_uid != os.geteuid():
        return _belongs(path, status.st_uid)
    if status.st_mode & _WRITABLE:
        return f"Other users can write to {path} (mode {stat.S_IMODE(status.st_mode):04o})"
    return ""


def _belongs(path: Path, uid: int) -> str:
    return f"{path} belongs to user {uid}, not to you (user {os.geteuid()})"

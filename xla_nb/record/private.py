"""Private files and folders: created so that nobody else can read them, and opened with checks.

A record has pickles, which execute code when opened, and the output of ranks. Every file and folder
of a home is created here, and every file of a record is opened for reading here.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

_WRITABLE = stat.S_IWGRP | stat.S_IWOTH


def own_folder(path: Path) -> None:
    """Make a folder private: create it with its parents if it is missing, and set its mode if
    others have access. Raises OSError, with a sentence if it belongs to another user."""
    try:
        status = path.stat()
    except FileNotFoundError:
        path.mkdir(0o700, parents=True, exist_ok=True)
        status = path.stat()
    if status.st_uid != os.geteuid():
        raise PermissionError(_describe_owner(path, status.st_uid))
    if status.st_mode & 0o777 != 0o700:
        with contextlib.suppress(OSError):  # a file system without modes
            path.chmod(0o700)


def writing(path: str | os.PathLike[str], flags: int = os.O_WRONLY | os.O_TRUNC) -> int:
    """Open a file for writing, created privately if missing; returns the descriptor. Raises
    OSError."""
    return os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, 0o600)


def write(path: Path, content: bytes) -> None:
    """Write a whole file. Raises OSError."""
    with os.fdopen(writing(path), "wb") as file:
        file.write(content)


def touch(path: str | os.PathLike[str]) -> None:
    """Create a file, or set its time to now. Raises OSError."""
    with os.fdopen(writing(path, os.O_WRONLY), "wb") as file:
        os.utime(file.fileno())


def reading(path: str | os.PathLike[str]) -> int:
    """Open a plain file for reading; returns the descriptor. Follows no symbolic link and never
    waits for a writer. Raises OSError, also if it is not a plain file."""
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
    """At most `most` bytes of a growing file from an offset on; none if there is no file yet.
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
        return _describe_owner(path, status.st_uid)
    if status.st_mode & _WRITABLE:
        return f"Other users can write to {path} (mode {stat.S_IMODE(status.st_mode):04o})"
    return ""


def _describe_owner(path: Path, uid: int) -> str:
    return f"{path} belongs to user {uid}, not to you (user {os.geteuid()})"

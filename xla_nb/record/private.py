"""Files and folders of one user: made so that nobody else can read them, opened with suspicion.

A record has pickles, which execute code when they are opened, and what ranks printed. Every file
and folder of a home is made here, and every file of a record is opened for reading here.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import stat
from pathlib import Path

_OTHERS = 0o077
_WRITABLE = stat.S_IWGRP | stat.S_IWOTH
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


# ---------------------------------------------------------------- making


def make_folder(path: Path) -> None:
    """Make a new folder with mode 0700, whatever the umask. Raises OSError."""
    path.mkdir(0o700)
    path.chmod(0o700)  # the umask may have taken away more


def own_folder(path: Path) -> None:
    """Make a folder that is there this user's alone: with its parents if it is missing, by its mode
    if others can look into it.

    Raises OSError, with a sentence where it belongs to somebody else or cannot be closed to others.
    """
    try:
        status = path.stat()
    except OSError:
        _make_with_parents(path)
        status = path.stat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "Not a folder", str(path))
    if status.st_uid != os.geteuid():
        raise PermissionError(_belongs(path, status.st_uid))
    if status.st_mode & 0o777 != 0o700:
        with contextlib.suppress(OSError):
            path.chmod(0o700)
        if path.stat().st_mode & _OTHERS:
            raise PermissionError(
                f"{path} cannot be closed to other users: its file system has no modes"
            )


def _make_with_parents(path: Path) -> None:
    """Make a folder and its parents; those that are there are left as they are. Raises OSError."""
    with contextlib.suppress(FileExistsError):
        try:
            make_folder(path)
        except FileNotFoundError:
            _make_with_parents(path.parent)
            make_folder(path)  # fails below a link that leads nowhere, and in /proc


def writing(path: str | os.PathLike[str], flags: int = os.O_WRONLY | os.O_TRUNC) -> int:
    """Open a file for writing, with mode 0600 whatever the umask; gives the descriptor.

    It is made if it is missing. Raises OSError.
    """
    fd = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, 0o600)
    status = os.fstat(fd)
    if stat.S_ISREG(status.st_mode) and stat.S_IMODE(status.st_mode) != 0o600:
        os.fchmod(fd, 0o600)
    return fd


def write(path: Path, content: bytes) -> None:
    """Write a whole file. Raises OSError."""
    fd, rest = writing(path), memoryview(content)
    try:
        while rest:
            rest = rest[os.write(fd, rest) :]
    finally:
        os.close(fd)


def touch(path: str | os.PathLike[str]) -> None:
    """Make a file, or give it the time of now. Raises OSError."""
    fd = writing(path, os.O_WRONLY)
    try:
        os.utime(fd)
    finally:
        os.close(fd)


# ---------------------------------------------------------------- reading


def reading(path: str | os.PathLike[str]) -> int:
    """Open a plain file for reading; gives the descriptor.

    Follows no symbolic link and never waits for a writer. Raises OSError, also for what is no plain
    file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, f"Not a plain file but {_kind(status)}", os.fspath(path))
    return fd


def read(path: Path) -> bytes:
    """The content of a plain file. Raises OSError."""
    with os.fdopen(reading(path), "rb") as file:
        return file.read()


# ---------------------------------------------------------------- what others have made


def why_odd(path: Path) -> str:
    """Why this is no plain file, in words; empty if it is one. Raises OSError."""
    status = path.lstat()
    return "" if stat.S_ISREG(status.st_mode) else f"{path} is {_kind(status)}, not a plain file"


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
    return f"{path} belongs to {_name(uid)}, not to {_name(os.geteuid())}"


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _kind(status: os.stat_result) -> str:
    return _KINDS.get(stat.S_IFMT(status.st_mode), "something else")

"""Ray's errors in plain words: specific advice for some, otherwise their last lines."""

from __future__ import annotations

import re
import sys

from xla_nb import ansi
from xla_nb.messages.exit_status import ending
from xla_nb.wording import shortened

#: How long to wait for an answer from a cluster, in seconds.
PATIENCE = 60.0
_LONGEST = 300  # characters of Ray's own words


def unreachable(address: str, kind: str, message: str) -> str:
    """Why the cluster at `address` ("" for a local one) cannot be used, from Ray's error."""
    cluster = f"The Ray cluster at {address}" if address else "The Ray cluster"
    is_missing = "ray[client]" in message or "'ray'" in message
    if is_missing and kind in ("ModuleNotFoundError", "ImportError", "ValueError"):
        return (
            "--on ray needs Ray with its client, which is not installed here. Run `pip install "
            f"'xla_nb[ray]'` in the notebook's environment ({sys.executable}), with the "
            "cluster's version of Ray."
        )
    if "ersion mismatch" in message:
        differing = " ".join(ansi.plain(message).split())
        return (
            f"{cluster} and the notebook have different versions: {differing}. Install the "
            "cluster's version of Ray here, or run the notebook on the cluster."
        )
    is_timeout = kind == "TimeoutError" and not message
    why = f"no answer in {PATIENCE:g} s" if is_timeout else f"{kind}: {_last_line(message)}"
    return (
        f"{cluster} cannot be used ({why}). Check that its head is running "
        "(`ray status` there) and that the address is right: `--on ray` uses RAY_ADDRESS and needs "
        "a node of the cluster on this machine, `--on ray://HOST:10001` the port of Ray's client "
        "server."
    )


def unplaced(message: str) -> str:
    """Why the process on a host could not be started, from Ray's error."""
    missing = re.search(r"No module named '(\w+)", message)
    if missing:
        return (
            f"The cluster's hosts cannot import {missing[1]}. Install xla_nb there, in the "
            "environment in which `ray start` was run; the notebook's own modules are not needed "
            "there."
        )
    why = _last_line(message) if message else "it did not answer in time"
    return (
        f"Could not start xla_nb on a host: {why}. Check `ray status` and the logs of the host's "
        "workers (/tmp/ray/session_latest/logs there)."
    )


def why_lost(message: str) -> str:
    """Why a host no longer answers, as a clause, from Ray's error."""
    if not message:  # a TimeoutError
        return "it did not answer for half a minute"
    if "low on memory" in message:
        return "Ray killed xla_nb's process there because the host was low on memory"
    return _last_line(message)


def client_ended(status: int, output: str) -> str:
    """Why the notebook's process that connects to the cluster ended, from its exit status
    (negative for a signal) and its last output."""
    why = f": {_last_line(output)}" if status >= 0 else ""  # not what it wrote before it was killed
    return (
        f"The process that connects to Ray {ending(status)}{why}. Check that the cluster's head "
        "is running (`ray status`); the next launch connects again."
    )


def _last_line(message: str) -> str:
    lines = ansi.plain(message).split("\n")
    lines = [line.strip() for line in lines if line.strip()]
    line = lines[-1] if lines else "no message"
    if len(line) > _LONGEST:  # whole sentences, if possible
        line = line[:_LONGEST].rpartition(". ")[0] or shortened(line, _LONGEST)
    return line.rstrip(".")

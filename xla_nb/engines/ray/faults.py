"""Ray's errors in plain words: some causes are recognized by Ray's wording, others are quoted."""

from __future__ import annotations

import re
import sys

from xla_nb import ansi
from xla_nb.wording import cause_of_death

#: How long to wait for an answer of a cluster, in seconds.
PATIENCE = 60.0
_CAUSES = (
    ("node has died|node died|marked dead", "its node died"),
    ("unavailable|Socket closed|RpcError", "it is no longer reachable"),
    ("low on memory", "Ray killed xla_nb's process there because the host was low on memory"),
    ("killed|worker died|worker process has died", "xla_nb's process there ended"),
)


def unreachable(address: str, kind: str, message: str) -> str:
    """Why the cluster at `address` ("" for a local one) cannot be used, from Ray's error."""
    cluster = f"The Ray cluster at {address}" if address else "The Ray cluster"
    for package in ("ray[client]", "'ray'"):
        if package in message and kind in ("ModuleNotFoundError", "ImportError", "ValueError"):
            return (
                "--on ray needs Ray with its client, which is not installed here. Run `pip install "
                f"'xla_nb[ray]'` in the notebook's environment ({sys.executable}), with the "
                "cluster's version of Ray."
            )
    if "ersion mismatch" in message:
        differing = " ".join(ansi.plain(message).split())
        return (
            f"{cluster} has other versions than the notebook: {differing}. Install the cluster's "
            "version of Ray here, or run the notebook on the cluster."
        )
    if kind == "TimeoutError":
        return (
            f"{cluster} does not answer (waited {PATIENCE:g} s): its head is down or hangs. Run "
            "`ray status` on the head; if that hangs too, run `ray stop` and `ray start --head` "
            "there."
        )
    return (
        f"{cluster} cannot be used ({kind}: {_last_line(message)}). Check that its head is running "
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
    if re.search(r"ray::\S+ \(pid=|Traceback \(most recent", ansi.plain(message)):
        return _last_line(message)  # raised by xla_nb there
    causes = (clause for pattern, clause in _CAUSES if re.search(pattern, message))
    return next(causes, _last_line(message))


def client_ended(status: int | None, output: str) -> str:
    """Why the notebook's process that connects to the cluster ended, from its exit status
    (negative for a signal) and its last output."""
    if status is not None and status < 0:
        return (
            f"The process that connects to Ray died: {cause_of_death(status)}. Run the cell again: "
            "the next launch starts a new one."
        )
    return (
        f"The process that connects to Ray ended ({_last_line(output)}). Check that the cluster's "
        "head is running (`ray status`); the next launch connects again."
    )


def _last_line(message: str) -> str:
    lines = ansi.plain(message).split("\n")
    lines = [line.strip() for line in lines if line.strip()]
    return lines[-1][:300].rstrip(".") if lines else "no message"

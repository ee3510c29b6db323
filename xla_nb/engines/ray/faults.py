"""Messages for failures of a Ray cluster, derived from Ray's own errors.

A cause is recognized by Ray's wording; an unknown one is quoted, without its colors.
"""

from __future__ import annotations

import re
import sys

from xla_nb import ansi
from xla_nb.wording import cause_of_death

#: How long to wait for an answer of a cluster, in seconds.
PATIENCE = 60.0


def unreachable(address: str, kind: str, message: str) -> str:
    """Why the cluster at `address` ("" for a local one) cannot be used, from Ray's error."""
    message = ansi.plain(message)
    cluster = f"The Ray cluster at {address}" if address else "The Ray cluster"
    if kind == "ModuleNotFoundError" and "'ray'" in message:
        return (
            "--on ray needs Ray, which is not installed here. Run `pip install 'xla_nb[ray]'` in "
            f"the notebook's environment ({sys.executable}), with the cluster's version of Ray."
        )
    if "ray[client]" in message:
        return (
            f"{cluster} is reached through Ray's client, which is not installed here. Run "
            f"`pip install 'ray[client]'` in the notebook's environment ({sys.executable}), with "
            "the cluster's version of Ray."
        )
    if "ersion mismatch" in message or "Ray version" in message or "Python version" in message:
        return f"{cluster} {_versions(message)}"
    if kind == "TimeoutError":
        return (
            f"{cluster} does not answer (waited {PATIENCE:g} s): its head is down or hangs. Run "
            "`ray status` on the head; if that hangs too, run `ray stop` and `ray start --head` "
            "there."
        )
    lower = message.lower()
    if "not found on this node" in lower or "this node has an ip address" in lower:
        return (
            f"{cluster} has no node on this machine, which a direct connection needs. Run "
            "`ray start --address=HOST:6379` here, or use `--on ray://HOST:10001`, which needs no "
            "node."
        )
    if kind in ("ConnectionError", "RuntimeError", "RpcError", "ConnectionAbortedError"):
        return (
            f"{cluster} cannot be reached ({_first_line(message)}). Check that its head is running "
            "(`ray status` there) and that the address is right: `--on ray` uses RAY_ADDRESS, "
            "`--on ray://HOST:10001` the port of Ray's client server."
        )
    return f"{cluster} cannot be used: {kind}: {_first_line(message)}. Check `ray status`."


def _versions(message: str) -> str:
    """Ray's list of versions as a sentence: first the cluster's, then this process's."""
    ray = re.findall(r"Ray: (\S+)", message)
    python = re.findall(r"Python: (\S+)", message)
    if len(ray) == len(python) == 2:
        theirs, ours = (f"Ray {r} on Python {p}" for r, p in zip(ray, python, strict=True))
        difference = f"has {theirs}, but the notebook has {ours}"
        version = ray[0]
    else:
        difference = f"has different versions from the notebook's ({_first_line(message)})"
        version = "..."
    return (
        f"{difference}. Both must have the same Ray, and the same Python up to the second number. "
        f"Install the cluster's version here (`pip install 'ray[client]=={version}'`), or run the "
        "notebook on the cluster."
    )


def unplaced(message: str) -> str:
    """Why the process on a host could not be started, from Ray's error."""
    message = ansi.plain(message) or "it did not answer in time"
    missing = re.search(r"No module named '(\w+)", message)
    if missing:
        return (
            f"The cluster's hosts cannot import {missing[1]}. Install xla_nb there, in the "
            "environment in which `ray start` was run; the notebook's own modules are not needed "
            "there."
        )
    return (
        f"Could not start xla_nb on a host: {_cause(message)}. Check `ray status` and the logs of "
        "the host's workers (/tmp/ray/session_latest/logs there)."
    )


def differing(host: str, package: str, there: str, here: str) -> str:
    """A host with another version of something that must be the same."""
    theirs = f"has {package} {there}" if there else f"has no {package}"
    return (
        f"{host} {theirs}, but the notebook has {here}. Install {package} {here} on the cluster's "
        "hosts, in the environment in which `ray start` was run."
    )


def no_chips(host: str, count: float) -> str:
    """A host with TPU chips by Ray's count, but none visible there."""
    return (
        f"Ray counts {count:g} TPU chips on {host}, but none is visible there. Give the container "
        "that runs Ray the host's devices (`docker run --privileged`), or add `--env "
        "PJRT_DEVICE=CPU` to simulate hosts."
    )


def why_lost(message: str) -> str:
    """Why a host no longer answers, as a clause, from Ray's error."""
    message = ansi.plain(message)
    if _RAISED.search(message):  # raised by xla_nb there
        return _cause(message)
    if "node has died" in message or "node died" in message or "marked dead" in message:
        return "its node died"
    if not message:  # a TimeoutError
        return "it did not answer for half a minute"
    if "unavailable" in message or "Socket closed" in message or "RpcError" in message:
        return "it is no longer reachable"
    if "low on memory" in message or "OUT_OF_MEMORY" in message:
        return "Ray killed xla_nb's process there because the host was low on memory"
    lower = message.lower()
    if "killed" in lower or "worker died" in lower or "connection error" in message:
        return "xla_nb's process there ended"
    return _first_line(message)


def client_ended(status: int | None, output: str) -> str:
    """Why the notebook's process that connects to the cluster ended, from its exit status
    (negative for a signal) and its last output."""
    output = ansi.plain(output)
    fix = "Run the cell again: the next launch starts a new one."
    if status is not None and status < 0:
        return f"The process that connects to Ray died: {cause_of_death(status)}. {fix}"
    if re.search(r"GCS|gcs_server|raylet|Connection to|grpc", output, re.IGNORECASE):
        return (
            "The connection to the cluster's head was lost. Check that the head is running "
            "(`ray status`); the next launch reconnects."
        )
    last = output.strip().splitlines()[-1:] or ["no output"]
    return f"The process that connects to Ray ended ({last[0][:200]}). {fix}"


#: The beginning of a traceback from a process of Ray's.
_RAISED = re.compile(r"ray::\S+ \(pid=|Traceback \(most recent")


def _cause(message: str) -> str:
    """The last line of a traceback; the first line of any other text."""
    return _first_line(message.strip().splitlines()[-1] if _RAISED.search(message) else message)


def _first_line(message: str) -> str:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[0][:300].rstrip(".") if lines else "no message"

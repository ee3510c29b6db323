"""What went wrong with a cluster, in a paragraph.

The rule: pure, and known by Ray's words, which are quoted, without their colours, where ours do
not fit.
"""

from __future__ import annotations

import re
import sys

from xla_nb import ansi
from xla_nb.wording import cause_of_death

#: Seconds that a cluster has to answer.
PATIENCE = 30.0


def unreachable(address: str, kind: str, said: str) -> str:
    """Why the cluster at `address` ("" for one that was looked for) cannot be used."""
    said = ansi.plain(said)
    where = f"the Ray cluster at {address}" if address else "a Ray cluster"
    if kind == "ModuleNotFoundError" and "'ray'" in said:
        return (
            "--on ray needs Ray, which is not installed here. What to do: `pip install "
            f"'xla_nb[ray]'` into the notebook's environment ({sys.executable}), in the version "
            "that the cluster has"
        )
    if "ray[client]" in said:
        return (
            f"{where} is reached through Ray's client, which is not installed here. What to do: "
            f"`pip install 'ray[client]'` into the notebook's environment ({sys.executable}), in "
            "the version that the cluster has"
        )
    if "ersion mismatch" in said or "Ray version" in said or "Python version" in said:
        return f"{where} {_versions(said)}"
    if kind == "TimeoutError":
        return (
            f"{where} does not answer: it was asked {PATIENCE:g} s ago. Its head is gone, or only "
            "half alive. What to do: `ray status` on the head; if that hangs too, `ray stop` and "
            "`ray start --head` there"
        )
    if "not found on this node" in said.lower() or "this node has an ip address" in said.lower():
        return (
            f"{where} has no node on this machine, which a direct connection needs. What to do: "
            "`ray start --address=HOST:6379` here, or `--on ray://HOST:10001`, which does without"
        )
    if kind in ("ConnectionError", "RuntimeError", "RpcError", "ConnectionAbortedError"):
        return (
            f"{where} cannot be reached ({_first(said)}). What to do: is its head running "
            "(`ray status` there), and is the address right? `--on ray` takes RAY_ADDRESS, "
            "`--on ray://HOST:10001` the port of Ray's client server"
        )
    return f"{where} cannot be used: {kind}: {_first(said)}. What to do: look at `ray status`"


def _versions(said: str) -> str:
    """Ray's own list of versions, in a line: first the cluster's, then this process's."""
    ray = re.findall(r"Ray: (\S+)", said)
    python = re.findall(r"Python: (\S+)", said)
    if len(ray) == len(python) == 2:
        theirs, ours = (f"Ray {r} on Python {p}" for r, p in zip(ray, python, strict=True))
        told = f"is {theirs}, and the notebook has {ours}"
        wanted = ray[0]
    else:
        told = f"has other versions than the notebook ({_first(said)})"
        wanted = "..."
    return (
        f"{told}. Both must be the same, Python's up to the second number. What to do: install "
        f"the cluster's version here (`pip install 'ray[client]=={wanted}'`), or run the notebook "
        "on the cluster"
    )


def unplaced(said: str) -> str:
    """Why the process on a host could not be started."""
    said = ansi.plain(said) or "it did not answer in time"
    missing = re.search(r"No module named '(\w+)", said)
    if missing:
        return (
            f"the cluster's hosts cannot import {missing[1]}. What to do: install xla_nb there, "
            "in the environment in which `ray start` was called; the notebook's own modules need "
            "not be there"
        )
    return (
        f"a host's process could not be started: {_cause(said)}. What to do: see `ray status`, and "
        "what the host's workers wrote (/tmp/ray/session_latest/logs there)"
    )


def differing(host: str, what: str, there: str, here: str) -> str:
    """A host with another version of something that must be the same."""
    told = f"has {what} {there}" if there else f"has no {what}"
    return (
        f"{host} {told}, and the notebook has {here}. What to do: install {what} {here} on the "
        "cluster's hosts, in the environment in which `ray start` was called"
    )


def no_chips(host: str, counted: float) -> str:
    """A host that is a TPU VM by Ray's count, and shows no chip."""
    return (
        f"Ray counts {counted:g} TPU chips on {host}, and no chip is to be seen there. What to do: "
        "give the container in which Ray runs the host's devices (`docker run --privileged`), or "
        "add `--env PJRT_DEVICE=CPU` for simulated hosts"
    )


def why_lost(said: str) -> str:
    """Why a host does not answer any more, from Ray's error."""
    said = ansi.plain(said)
    if _RAISED.search(said):  # an error of ours there
        return _cause(said)
    if "node has died" in said or "node died" in said or "marked dead" in said:
        return "its node died"
    if not said:  # TimeoutError has no words
        return "it has not answered for half a minute"
    if "unavailable" in said or "Socket closed" in said or "RpcError" in said:
        return "it cannot be reached any more"
    if "low on memory" in said or "OUT_OF_MEMORY" in said:
        return "Ray ended xla_nb's process there, because the host's memory ran low"
    if "killed" in said.lower() or "worker died" in said.lower() or "connection error" in said:
        return "xla_nb's process there ended"
    return _first(said)


def client_ended(status: int | None, words: str) -> str:
    """Why the notebook's own process that speaks to the cluster has ended, from its exit status
    (negative for a signal) and its last words."""
    words = ansi.plain(words)
    again = "What to do: run the cell again; the next launch starts another one"
    if status is not None and status < 0:
        return f"the process that speaks to the cluster was {cause_of_death(status)}. {again}"
    if re.search(r"GCS|gcs_server|raylet|Connection to|grpc", words, re.IGNORECASE):
        return (
            "the connection to the cluster's head was lost. What to do: see whether the head "
            "lives (`ray status`); the next launch connects anew"
        )
    last = words.strip().splitlines()[-1:] or ["it left no words"]
    return f"the process that speaks to the cluster ended ({last[0][:200]}). {again}"


#: How Ray begins the traceback of what was raised in a process of its.
_RAISED = re.compile(r"ray::\S+ \(pid=|Traceback \(most recent")


def _cause(said: str) -> str:
    """The error that a traceback ends with; of other texts the first line."""
    return _first(said.strip().splitlines()[-1] if _RAISED.search(said) else said)


def _first(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[0][:300].rstrip(".") if lines else "nothing was said"

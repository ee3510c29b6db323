"""Ray's error texts, each from its source, and the messages made from them."""

import re
import sys

import pytest

from xla_nb.engines.ray import faults

AT = "ray://head:10001"

# ray/_private/utils.py, check_version_info
VERSIONS = """Version mismatch: The cluster was started with:
    Ray: 2.9.3
    Python: 3.10.12
This process on Ray Client was started with:
    Ray: 2.50.1
    Python: 3.11.9
"""
# ray/exceptions.py, ActorDiedError; the last paragraph is from the core worker
DIED = """The actor died unexpectedly before finishing this task.
\tclass_name: Actor
\tactor_id: 1f2e3d4c5b6a798801000000
\tpid: 4242
\tnamespace: 0f0f0f0f-1111-2222-3333-444444444444
\tip: 10.0.0.7
"""
WORKER = """The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR \
Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file. There \
are some potential root causes. (1) The process is killed by SIGKILL by OOM killer due to high \
memory usage. (2) ray stop --force is called. (3) The worker is crashed unexpectedly due to SIGSEGV\
 or other unexpected errors."""
NODE = """The actor died because its node has died. Node Id: 0123456789abcdef
\tthe actor's node was terminated unexpectedly: health check failed due to missing too many \
heartbeats"""
MEMORY = "Task was killed due to the node running low on memory.\nMemory on the node was 9.9GB"
# ray/exceptions.py, RayTaskError.__str__
RAISED = """\x1b[36mray::Actor.news()\x1b[39m (pid=4242, ip=10.0.0.7, actor_id=1f2e, repr=<x>)
  File "/venv/xla_nb/engines/ray/host.py", line 139, in news
    return self._runs[run].news(seen)
FileNotFoundError: a file is unavailable, its process was killed"""
IN_INIT = "The actor died because of an error raised in its creation task, " + RAISED
# ray/_private/function_manager.py
NOT_IMPORTED = """\x1b[36mray::Actor.__init__()\x1b[39m (pid=4242, ip=10.0.0.7)
RuntimeError: The actor with name Actor failed to import on the worker. This may be because needed \
library dependencies are not installed in the worker environment:

\x1b[36mray::Actor.__init__()\x1b[39m (pid=4242, ip=10.0.0.7)
ModuleNotFoundError: No module named 'xla_nb'"""


def is_a_paragraph(text):
    """One line without colors that ends in an imperative sentence."""
    fix = re.search(r"\. (Run|Install|Give|Check) .*\.$", text)
    return "\n" not in text and "\x1b" not in text and fix


# ---------------------------------------------------------------- unreachable cluster


@pytest.mark.parametrize(
    ("kind", "message", "expected"),
    [
        ("ModuleNotFoundError", "No module named 'ray'", "needs Ray with its client"),
        (
            "ValueError",
            "Ray Client requires pip package `ray[client]`.",
            "needs Ray with its client",
        ),
        (
            "RuntimeError",
            VERSIONS,
            "and the notebook have different versions: Version mismatch:",
        ),
        ("TimeoutError", "", "cannot be used (no answer in 60 s)"),
        ("ConnectionError", "ray client connection timeout", "(ConnectionError: ray client"),
        (
            "RuntimeError",
            "\x1b[31mFailed to connect to GCS. Please check if the GCS server is running\x1b[0m",
            "cannot be used (RuntimeError: Failed to connect to GCS. Please check",
        ),
        ("OddError", "", "cannot be used (OddError: no message)"),
    ],
)
def test_each_reason_for_an_unusable_cluster_has_its_paragraph(kind, message, expected):
    text = faults.unreachable(AT, kind, message)
    assert expected in text
    assert is_a_paragraph(text)


def test_message_names_the_address_of_the_cluster_if_it_has_one():
    assert faults.unreachable(AT, "TimeoutError", "").startswith(f"The Ray cluster at {AT} cannot")
    assert faults.unreachable("", "TimeoutError", "").startswith("The Ray cluster cannot")


def test_missing_package_error_names_this_environment():
    text = faults.unreachable(AT, "ModuleNotFoundError", "No module named 'ray'")
    assert sys.executable in text


# ---------------------------------------------------------------- failed start on a host


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (NOT_IMPORTED, "The cluster's hosts cannot import xla_nb"),
        (
            IN_INIT,
            "xla_nb on a host: FileNotFoundError: a file is unavailable, its process",
        ),
        (
            DIED + WORKER,
            "Could not start xla_nb on a host: The actor is dead because",
        ),
    ],
)
def test_each_reason_for_a_failed_start_has_its_paragraph(message, expected):
    text = faults.unplaced(message)
    assert expected in text
    assert is_a_paragraph(text)


# ---------------------------------------------------------------- lost hosts


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (DIED + NODE, "the actor's node was terminated unexpectedly: health check failed due to "
         "missing too many heartbeats"),
        (DIED + "The actor is dead because it was killed by `ray.kill`.",
         "The actor is dead because it was killed by `ray.kill`"),
        (MEMORY, "Ray killed xla_nb's process there because the host was low on memory"),
        (RAISED, "FileNotFoundError: a file is unavailable, its process was killed"),
        ("Traceback (most recent call last):\n  File x\nOSError: [Errno 28] No space left",
         "OSError: [Errno 28] No space left"),
        ("\x1b[36msomething else.\x1b[39m\nand more.", "and more"),
        ("", "it did not answer for half a minute"),
    ],
)  # fmt: skip
def test_reason_for_a_lost_host_is_a_clause(message, why):
    assert faults.why_lost(message) == why


def test_long_reason_ends_with_a_sentence():
    message = "It exited. " + "There are some potential root causes (1). " * 20
    why = faults.why_lost(message)
    assert len(why) < 300
    assert why.endswith("There are some potential root causes (1)")


# ---------------------------------------------------------------- our own process


@pytest.mark.parametrize(
    ("output", "last"),
    [("Traceback\n\x1b[31mMemoryError\x1b[0m\n", "MemoryError."), ("", "no message.")],
)
def test_output_of_our_process_is_quoted(output, last):
    text = faults.client_ended(1, output)
    assert text.startswith(f"The process that connects to Ray exited with status 1: {last}")
    assert is_a_paragraph(text)


def test_killed_process_is_reported_with_its_signal():
    text = faults.client_ended(-9, "Failed to connect to GCS")
    assert text.startswith("The process that connects to Ray was killed by SIGKILL")
    assert "GCS" not in text  # written before, for another reason
    assert text.endswith("the next launch connects again.")

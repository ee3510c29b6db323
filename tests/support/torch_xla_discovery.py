"""A process of its own for test_tpu_client.py: really traced Pallas calls, and JAX's TPU clients.

It reads its cases from stdin as JSON, forks a child for each, and answers on stdout. It has
torch_xla, and imports JAX when the cases that are without it are done. In a child the creation of
JAX's TPU client is replaced where it leaves Python (`get_c_api_client`): the fake says whether the
guard was up, and that there is no TPU, whereupon JAX takes the CPU and the tracing goes on as far
as it can there. All else is as a user has it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

import jaxlib._jax
import torch
import torch_xla
from torch_xla._internal import jax_workarounds

from xla_nb.runtimes import tpu_client

PATIENCE = 30  # seconds: no test waits for ever
CELL = "Cell In[3]"
TRACES = """\
def trace():
    q = torch.randn(1, 2, 128, 8, device="xla")
    return flash_attention(q, q, q)
"""


class Child:
    """One child: `creations` are those of JAX's TPU client, `ends` how each traced call ended."""

    def __init__(self) -> None:
        self.creations: list[str | None] = []
        self.ends: list[str] = []
        self.during: Callable[[], object] = lambda: None

    def create(self, *_: object) -> None:
        """In place of the client's creation, which takes its time."""
        self.during()
        self.creations.append(os.environ.get(tpu_client.GUARD))
        raise RuntimeError("there is no TPU")

    def trace(self) -> None:
        """flash_attention in a cell; on the CPU it gets as far as the kernel's lowering."""
        from torch_xla.experimental.custom_kernel import flash_attention

        cell = {"torch": torch, "flash_attention": flash_attention}
        exec(compile(TRACES, CELL, "exec"), cell)
        try:
            cell["trace"]()
        except ValueError as end:
            self.ends.append(str(end))


# ---------------------------------------------------------------- what a rank may do


def alone(child: Child) -> None:
    child.trace()


def in_threads(child: Child) -> None:
    together = threading.Barrier(4, timeout=PATIENCE)

    def one() -> None:
        together.wait()
        child.trace()

    run(*[one] * 4)


def nested(child: Child) -> None:
    jax_workarounds.requires_jax(child.trace)()


def overlapping(child: Child) -> None:
    """A call that began first ends while others are traced, and JAX's client is being made."""
    inside, creating, left = threading.Event(), threading.Event(), threading.Event()

    def one_leaves() -> None:
        @jax_workarounds.requires_jax
        def kernel() -> None:
            inside.set()
            assert creating.wait(PATIENCE)

        kernel()
        left.set()

    def another_traces() -> None:
        assert inside.wait(PATIENCE)
        child.trace()

    def during() -> None:
        creating.set()
        assert left.wait(PATIENCE)

    child.during = during
    run(one_leaves, *[another_traces] * 3)


def beside_torch_xla(child: Child) -> None:
    """A cell that uses JAX by itself, where torch_xla sets nothing."""
    import jax

    jax.devices()


def run(*each: Callable[[], None]) -> None:
    threads = [threading.Thread(target=one, daemon=True) for one in each]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)


# ---------------------------------------------------------------- the children


def answer(scenario: str, guarded: bool) -> dict[str, Any]:
    signal.alarm(2 * PATIENCE)
    os.environ["PJRT_DEVICE"] = "CPU"
    child = Child()
    plugin: Any = jaxlib._jax
    plugin.pjrt_plugin_loaded = plugin.pjrt_plugin_initialized = lambda name: True
    plugin.get_c_api_client = child.create
    if guarded:
        tpu_client.start()
    else:
        torch_xla._XLAC._init_computation_client()
    globals()[scenario](child)
    return {
        "creations": child.creations,
        "ends": child.ends,
        "after": os.environ.get(tpu_client.GUARD),
        "contexts": [
            name
            for name, module in list(sys.modules.items())
            if vars(module).get("jax_env_context", tpu_client._held) is not tpu_client._held
        ],
    }


def fork(case: dict[str, Any]) -> tuple[int, int]:
    """A child of this process that answers, and the pipe by which it does."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        told: Any = None
        try:
            told = answer(**case)
        except BaseException:
            traceback.print_exc()
        os.write(writer, json.dumps(told).encode())
        os._exit(0)
    os.close(writer)
    return pid, reader


def answers(cases: list[dict[str, Any]]) -> list[Any]:
    """What children that work side by side answer; None where one could not."""
    found = []
    for pid, reader in [fork(case) for case in cases]:
        with os.fdopen(reader) as child:
            found.append(json.loads(child.read() or "null"))
        os.waitpid(pid, 0)
    return found


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    later = answers(asked["jax_later"])
    import jax  # noqa: F401

    first = answers(asked["jax_first"])
    print(json.dumps({"jax_later": later, "jax_first": first}), flush=True)
    os._exit(0)  # torch takes seconds to take itself down

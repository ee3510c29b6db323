"""A separate process for test_tpu_client.py: a really traced Pallas call, and JAX's TPU client.

The call that began first ends while others are being traced and JAX's client is being created. The
creation is replaced at its last step in Python (`get_c_api_client`): the fake records the variable
and raises that there is no TPU, so JAX falls back to the CPU and the tracing continues as far as it
can there. The process prints what the fake recorded and how the calls ended, with and without
xla_nb's `open_client`.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import traceback
from typing import Any

import jax  # noqa: F401
import jaxlib._jax
import torch
import torch_xla
from torch_xla._internal import jax_workarounds

from xla_nb.runtimes import xla

PATIENCE = 30  # seconds; no test waits forever


def overlapping(is_ours: bool) -> dict[str, list[str | None]]:
    signal.alarm(2 * PATIENCE)
    os.environ["PJRT_DEVICE"] = "CPU"
    inside, creating, left = threading.Event(), threading.Event(), threading.Event()
    creations: list[str | None] = []
    ends: list[str | None] = []

    def create(*_: object) -> None:
        creating.set()
        assert left.wait(PATIENCE)
        creations.append(os.environ.get("SKIP_MEGASCALE_PJRT_CLIENT"))
        raise RuntimeError("there is no TPU")

    def one_leaves() -> None:
        @jax_workarounds.requires_jax
        def kernel() -> None:
            inside.set()
            assert creating.wait(PATIENCE)

        kernel()
        left.set()

    def another_traces() -> None:
        from torch_xla.experimental.custom_kernel import flash_attention

        assert inside.wait(PATIENCE)
        q = torch.randn(1, 2, 128, 8, device="xla")
        try:
            flash_attention(q, q, q)
        except ValueError as end:
            ends.append(str(end))

    plugin: Any = jaxlib._jax
    plugin.pjrt_plugin_loaded = plugin.pjrt_plugin_initialized = lambda name: True
    plugin.get_c_api_client = create
    if is_ours:
        xla.open_client()
    else:
        torch_xla._XLAC._init_computation_client()
    threads = [threading.Thread(target=each, daemon=True) for each in (one_leaves, another_traces)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    return {"creations": creations, "ends": ends}


def in_a_child(is_ours: bool) -> Any:
    reader, writer = os.pipe()
    if not os.fork():
        try:
            os.write(writer, json.dumps(overlapping(is_ours)).encode())
        except BaseException:
            traceback.print_exc()
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as child:
        return json.loads(child.read() or "null")


if __name__ == "__main__":
    print(json.dumps([in_a_child(True), in_a_child(False)]), flush=True)
    os._exit(0)  # torch takes seconds to shut down

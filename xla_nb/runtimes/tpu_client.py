"""Keeps JAX in a rank from discovering the TPU's slices a second time, after torch_xla did.

Tracing a Pallas kernel makes JAX start a client beside torch_xla's. On several slices that client
would look for the other slices, and wait forever, unless SKIP_MEGASCALE_PJRT_CLIENT is true.
torch_xla sets the variable around each of its calls into JAX, which is safe in one thread only
(_internal/jax_workarounds.py, jax_env_context; pytorch/xla issues 8812 and 8954). Here it is set
once, after torch_xla's client has started.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from typing import Any

GUARD = "SKIP_MEGASCALE_PJRT_CLIENT"

#: The modules of torch_xla that bind `jax_env_context`.
_WITH_CONTEXT = ("torch_xla._internal.jax_workarounds", "torch_xla.core.xla_builder")


def start() -> None:
    """In a rank that has joined, before its function: start torch_xla's client, then set the
    variable for the life of this process, and keep torch_xla from undoing that.

    torch_xla's context sets the variable and restores its old value, in any number of threads; with
    `_held` in its place nothing writes to an environment that a client may be reading.
    """
    import torch_xla

    torch_xla._XLAC._init_computation_client()
    os.environ[GUARD] = "true"
    with contextlib.suppress(ImportError):  # now, because a later import would bring its context
        importlib.import_module(_WITH_CONTEXT[0])
    for name in _WITH_CONTEXT:
        module: Any = sys.modules.get(name)
        if hasattr(module, "jax_env_context"):
            module.jax_env_context = _held


@contextlib.contextmanager
def _held() -> Iterator[None]:
    """Replaces `jax_env_context` in a rank."""
    yield

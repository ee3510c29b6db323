"""A process with four virtual devices: runs a function for each line it reads.

The function is from scenarios.py, or from the module that its name begins with. As in a rank of the
SPMD runtime, torch's functions place models as xla_nb.spmd does.
"""

from __future__ import annotations

import base64
import importlib
import os
import pickle
import sys
import traceback
from typing import Any

import scenarios  # before `set_up`, like programs that import torch's functions early
import torch_xla

from xla_nb.runtimes import spmd


def serve() -> None:
    spmd.set_up(order=None)
    torch_xla.runtime.use_spmd()
    print("ready", flush=True)
    for line in sys.stdin:
        name, args = pickle.loads(base64.b64decode(line))
        answer: tuple[bool, Any]
        try:
            module, _, function = name.rpartition(".")
            scenario = getattr(importlib.import_module(module or scenarios.__name__), function)
            answer = True, scenario(*args)
        except BaseException:
            answer = False, traceback.format_exc()
        print(base64.b64encode(pickle.dumps(answer)).decode(), flush=True)


if __name__ == "__main__":
    serve()
    sys.stdout.flush()
    os._exit(0)  # torch takes seconds to shut down

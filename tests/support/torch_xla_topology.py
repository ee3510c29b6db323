"""The separate process behind the fixture `torch_xla_says`: how torch_xla reads an environment.

Reads lists of cases from stdin, one JSON line each. For each case it prints how many processes
`xmp.spawn` would start and the TPU variables of each. Only the chips and the metadata server are
faked; every decision is torch_xla's own.
"""

import json
import os
import sys
from unittest import mock

import torch_xla
import torch_xla.core.xla_model as xm
from torch_xla._internal import pjrt, tpu

OF_A_RANK = (
    "CLOUD_TPU_TASK_ID",
    "TPU_VISIBLE_CHIPS",
    "TPU_PROCESS_PORT",
    "TPU_PROCESS_ADDRESSES",
    "TPU_PROCESS_BOUNDS",
    "TPU_CHIPS_PER_PROCESS_BOUNDS",
    "PJRT_LOCAL_PROCESS_RANK",
    "PJRT_LOCAL_PROCESS_COUNT",
)


class Pool:
    """Replaces the process pool: runs the start of each rank here, one after another."""

    def __init__(self, max_workers, mp_context):
        self.processes = max_workers
        self.ranks = []

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        return None

    def map(self, start, local_ranks):
        launch = dict(os.environ)
        for local_rank in local_ranks:
            with mock.patch.dict(os.environ, launch, clear=True):
                start.keywords["initializer_fn"](local_rank, start.keywords["local_world_size"])
                self.ranks.append({name: os.environ.get(name) for name in OF_A_RANK})
        return [{local_rank: None} for local_rank in local_ranks]


def outcome(case):
    """How `xmp.spawn` starts ranks in this environment, on a host with these chips."""
    pools = []

    def pool(**kwargs):
        pools.append(Pool(**kwargs))
        return pools[-1]

    with (
        mock.patch.dict(os.environ, case["environ"], clear=True),
        mock.patch.object(tpu, "num_available_chips", lambda: case["chips"]),
        mock.patch.object(tpu, "_get_metadata", case["metadata"].__getitem__),
        mock.patch.object(pjrt.concurrent.futures, "ProcessPoolExecutor", pool),
        mock.patch.object(xm, "get_xla_supported_devices", list),
        mock.patch.object(xm, "set_replication"),
        mock.patch.object(torch_xla, "device"),
    ):
        try:
            pjrt.spawn(print, start_method="fork")
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}
    return {"processes": pools[0].processes, "ranks": pools[0].ranks}


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps([outcome(case) for case in json.loads(line)]), flush=True)
    os._exit(0)  # torch takes seconds to take itself down

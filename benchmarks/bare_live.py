"""The minimum that runs a cell in persistent processes: the baseline for a cell of live ranks.

`%%bare` sends its text to plain Python processes through pipes and prints their output. It does not
analyze or ship anything, keeps nothing and handles no errors. A setup cell imports this module.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import sys

from IPython.core.getipython import get_ipython

_RANK = r"""
import sys
names = {"rank": int(sys.argv[1])}
for line in sys.stdin:
    exec(compile(eval(line), "cell", "exec"), names)
    print("\0", flush=True)
"""


def start(ranks: int) -> None:
    """Start `ranks` processes and register `%%bare`."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _RANK, str(rank)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for rank in range(ranks)
    ]

    def bare(line: str, cell: str) -> None:
        order = repr(cell).encode() + b"\n"
        with selectors.DefaultSelector() as selector:
            for process in processes:
                assert process.stdin and process.stdout
                os.write(process.stdin.fileno(), order)
                selector.register(process.stdout, selectors.EVENT_READ)
            while selector.get_map():
                for key, _ in selector.select():
                    text = os.read(key.fd, 1 << 16)
                    if b"\0" in text or not text:
                        selector.unregister(key.fileobj)
                    print(text.replace(b"\0\n", b"").decode(), end="", flush=True)

    shell = get_ipython()
    assert shell
    shell.register_magic_function(bare, "cell", "bare")  # type: ignore[arg-type]

"""Runs code in another Python process."""

import subprocess
import sys


def printed(code: str, *arguments: str, fails: bool = False) -> list[str]:
    """The lines that the code prints and, if it `fails`, the lines of its traceback."""
    process = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert bool(process.returncode) is fails, process.stderr
    return [*process.stdout.splitlines(), *(process.stderr.splitlines() if fails else ())]

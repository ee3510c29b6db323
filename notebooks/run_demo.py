"""Execute quickstart.ipynb as a headless notebook and show what its ranks returned.

The rows come from the executed notebook's own outputs: the last one that carries a run of xla_nb,
`application/vnd.xla-nb.run+json`. Nothing here knows what the notebook computes.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError
from traitlets.config import Config

HERE = Path(__file__).parent
NOTEBOOK = HERE / "quickstart.ipynb"
EXECUTED = HERE.parent / "out" / NOTEBOOK.name
RUN = "application/vnd.xla-nb.run+json"
COLUMNS = ("rank", "device", "result")


def main() -> int:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    problem = execute(notebook)
    EXECUTED.parent.mkdir(exist_ok=True)
    nbformat.write(notebook, EXECUTED)  # a notebook that failed shows where, so it is kept too
    ranks = returned(notebook)
    if not problem and not ranks:
        problem = f"No output of {NOTEBOOK.name} holds a run ({RUN})."
    print(problem or table(ranks))
    print(f"\nExecuted notebook: {EXECUTED}")
    return 1 if problem else 0


def execute(notebook: nbformat.NotebookNode, cwd: Path = HERE) -> str:
    """Run every cell in a fresh kernel; gives the error that stopped it, or nothing."""
    # Sockets in a folder of its own, of a short name: ipykernel warns of TCP.
    with tempfile.TemporaryDirectory(prefix="xla-nb-") as folder:
        local = Config()
        local.KernelManager.transport = "ipc"
        local.KernelManager.connection_file = str(Path(folder) / "kernel.json")
        place = {"metadata": {"path": str(cwd)}}
        try:
            NotebookClient(notebook, timeout=600, resources=place, config=local).execute()
        except (CellExecutionError, DeadKernelError) as error:
            return str(error)
    return ""


def returned(notebook: nbformat.NotebookNode) -> list[dict[str, Any]]:
    """The ranks of the last run that the notebook shows."""
    runs: list[dict[str, Any]] = [
        output["data"][RUN]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if RUN in output.get("data", {})
    ]
    return runs[-1]["ranks"] if runs else []


def table(ranks: list[dict[str, Any]]) -> str:
    """One line per rank under a heading, each column as wide as it needs to be."""
    rows = [COLUMNS, *(tuple(str(rank.get(name, "")) for name in COLUMNS) for rank in ranks)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


if __name__ == "__main__":
    sys.exit(main())

"""Execute quickstart.ipynb as a headless notebook and show what its ranks returned.

The rows come from the executed notebook's own outputs: the last one that carries a run of xla_nb,
`application/vnd.xla-nb.run+json`. Nothing here knows what the notebook computes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError

HERE = Path(__file__).parent
NOTEBOOK = HERE / "quickstart.ipynb"
EXECUTED = HERE.parent / "out" / NOTEBOOK.name
RUN = "application/vnd.xla-nb.run+json"
COLUMNS = ("rank", "device", "result")


def main() -> int:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    try:
        NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(HERE)}}).execute()
    except (CellExecutionError, DeadKernelError) as error:
        print(error, file=sys.stderr)
        return 1
    finally:  # a notebook that failed shows where, so it is kept too
        EXECUTED.parent.mkdir(exist_ok=True)
        nbformat.write(notebook, EXECUTED)
        print(f"Executed notebook: {EXECUTED}\n")
    ranks = returned(notebook)
    if not ranks:
        print(f"No output of {NOTEBOOK.name} holds a run ({RUN}).", file=sys.stderr)
        return 1
    print(table(ranks))
    return 0


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

"""The layers in docs/how-it-works.md: check from every module which folder imports which."""

import ast
import functools
import graphlib
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "xla_nb"
DOCS = PACKAGE.parent / "docs" / "how-it-works.md"

#: From top to bottom: a module imports only from rows below its own and from its own folder.
ROWS = (
    (
        *("__init__", "magics"),
        *("dropin", "live", "live_questions"),
        *("api", "notebook"),
    ),
    ("views",),
    ("run",),
    ("monitor",),
    ("engines",),
    ("rank",),
    ("runtimes",),
    ("simulation",),
    ("program",),
    ("record",),
    ("spmd", "torchax"),
    ("live_ranks",),
    ("messages",),
    ("process_state",),
    ("pickling",),
    ("topology",),
    ("old_names",),
    (
        "errors",
        "wording",
        "ansi",
        "linux",
        "memory",
        "patching",
        "stopwatch",
        "untrusted",
    ),
)
#: Engines start the processes in which ranks run; code that both need is in `messages`.
STRANGERS = {("engines", "rank")}
KNOW_TORCH = {"rank", "runtimes", "simulation", "spmd", "torchax", "pickling"}
IMPORT_IPYTHON = {
    "magics",
    "views.panel.view",
}  # at module level; inside a function others may too

ROW_OF = {folder: row for row, folders in enumerate(ROWS) for folder in folders}
MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
}


def folder(module: str) -> str:
    return module.partition(".")[0]


@functools.cache
def imports(module: str, source: str) -> tuple[tuple[str, bool], ...]:
    """All imports of a module, with True for those outside functions.

    `from xla_nb.a import b` is returned as `xla_nb.a.b`, whether `b` is a module or not.
    """
    tree = ast.parse(source)
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    found = list[tuple[str, bool]]()
    for node in ast.walk(tree):
        with_file = id(node) not in inside
        if isinstance(node, ast.Import):
            found += ((alias.name, with_file) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = [*parents(module, node.level), *([node.module] if node.module else [])]
            found += ((".".join([*start, alias.name]), with_file) for alias in node.names)
    return tuple(found)


def parents(module: str, level: int) -> list[str]:
    """The path of the package at which a relative import starts; empty without dots."""
    path = ["xla_nb", *module.split(".")]
    if MODULES.get(module, PACKAGE).name == "__init__.py":
        path.append("__init__")
    return path[:-level] if level else []


def own(name: str) -> str | None:
    """The module of xla_nb that an import of `name` loads, if any."""
    package, _, rest = name.partition(".")
    if package != "xla_nb":
        return None
    while rest and rest not in MODULES:
        rest = rest.rpartition(".")[0]
    return rest or "__init__"


def breaches(module: str, source: str) -> list[str]:
    """The rules that a module with this source breaks."""
    here = folder(module)
    if here not in ROW_OF:
        return [f"{module}: add its folder to a row"]
    broken = []
    for name, with_file in imports(module, source):
        root, ours = name.partition(".")[0], own(name)
        there = None if ours is None else folder(ours)
        if there is not None and there != here and not may_import(here, there):
            broken.append(f"{module} imports {ours}, which is not below it")
        if root in ("torch", "torch_xla", "_XLAC") and here not in KNOW_TORCH:
            broken.append(f"{module} imports {name}: only {sorted(KNOW_TORCH)} may")
        if root == "IPython" and with_file and module not in IMPORT_IPYTHON:
            broken.append(f"{module} imports {name} with the file: only {IMPORT_IPYTHON} may")
    return broken


def may_import(here: str, there: str) -> bool:
    if (here, there) in STRANGERS or there not in ROW_OF:
        return False
    front = here in ROWS[0] and there in ROWS[0]
    return front or ROW_OF[there] > ROW_OF[here]


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_module_imports_only_from_lower_layers(module: str) -> None:
    assert not breaches(module, MODULES[module].read_text())


def test_modules_have_no_import_cycles() -> None:
    graph = {
        module: {
            ours
            for name, _ in imports(module, path.read_text())
            if (ours := own(name)) not in (None, module, "__init__")
            # A package's __init__ imports its modules, and they may import it.
            and not module.startswith(f"{ours}.")
        }
        for module, path in MODULES.items()
    }
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the modules


def test_no_module_is_longer_than_800_lines() -> None:
    lengths = {module: len(path.read_text().splitlines()) for module, path in MODULES.items()}
    assert not {module: length for module, length in lengths.items() if length > 800}


def test_the_docs_show_the_current_layers() -> None:
    drawing = DOCS.read_text().partition("## The house")[2].partition("\n## ")[0]
    rows = [
        re.findall(r"`(\w+)/?`", line.split("|")[1]) for line in drawing.splitlines() if "|" in line
    ]
    assert [tuple(row) for row in rows if row] == list(ROWS)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("messages.events", "from xla_nb.magics import load"),
        ("messages.events", "from xla_nb.monitor import state"),
        ("messages.events", "from xla_nb import __version__"),
        ("messages.events", "import xla_nb"),
        ("messages.events", "from ..run import state"),
        ("engines", "from ..run.run import Run"),
        ("engines.local", "def f():\n    from xla_nb.rank import job"),
        ("rank.job", "import xla_nb.engines.local"),
        ("topology.chips", "if TYPE_CHECKING:\n    import xla_nb.rank.process"),
        ("record.files", "import torch"),
        ("engines.local", "def f():\n    import torch_xla.runtime as xr"),
        ("program.ipython_syntax", "from IPython.core import inputtransformer2"),
        ("brand_new", ""),
    ],
)
def test_a_forbidden_import_is_found(module: str, source: str) -> None:
    assert breaches(module, source)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("monitor.state", "from xla_nb.messages import events"),
        ("engines.local", "from xla_nb.engines import forkserver"),
        ("engines.local", "from . import forkserver"),
        ("program.cells", "from ..errors import ProgramError"),
        ("runtimes.xla", "import torch"),
        ("program.ipython_syntax", "def f():\n    import IPython"),
        ("magics", "import IPython, xla_nb.topology"),
        ("__init__", "from xla_nb.errors import XlaNbError"),
    ],
)
def test_an_allowed_import_passes(module: str, source: str) -> None:
    assert not breaches(module, source)

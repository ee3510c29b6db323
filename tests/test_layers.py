"""The layers of docs/how-it-works.md: who may import whom, read from the source of every module."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "xla_nb"

# A module imports from the rows above its own and, in its row, from those to its left; `x.*` is
# a package, whose modules are at home with each other. This table is the only place to edit.
ROWS = {
    "words": (
        "plural errors events vitals state inheritance order source escapes live reach patches "
        "plan entry items extraction program topology slices grids ansi"
    ),
    "in a rank": (
        "wire addresses arrays shipping loading tracebacks processes reporting meter "
        "simulation.* spmd.* runtimes.* torchax machine rank job"
    ),
    "starting ranks": "record engines.*",
    "this notebook": "tails history sentences recorded session notebook",
    "seen by people": (
        "chart snapshot observer still.* opened stacks follow text panel frontend doctor "
        "drawing layouts api magics"
    ),
    "top": "__init__",
}
KNOW_TORCH = {*ROWS["in a rank"].split(), "engines.forkserver"}
IMPORT_IPYTHON = {"magics", "panel"}  # with the file; inside a function others may

PLACES = {
    module: (row, column)
    for row, modules in enumerate(ROWS.values())
    for column, module in enumerate(modules.split())
}
MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
}


def place(module: str) -> tuple[int, int] | None:
    """Row and column of a module, or of the package that it is in."""
    return PLACES.get(module) or PLACES.get(f"{module.partition('.')[0]}.*")


def imports(module: str, source: str) -> Iterator[tuple[str, bool]]:
    """What a module imports, in functions and under TYPE_CHECKING too; True: with the file.

    `from xla_nb import x` may name a module or something in `__init__`: it is given as both.
    """
    tree = ast.parse(source)
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        with_file = id(node) not in inside
        if isinstance(node, ast.Import):
            yield from ((alias.name, with_file) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = [*parents(module, node.level), *([node.module] if node.module else [])]
            yield from ((".".join([*start, alias.name]), with_file) for alias in node.names)


def parents(module: str, level: int) -> list[str]:
    """The package that a relative import with so many dots starts from; none without a dot."""
    path = ["xla_nb", *module.split(".")]
    if MODULES.get(module, PACKAGE).name == "__init__.py":
        path.append("__init__")
    return path[:-level] if level else []


def own(name: str) -> str | None:
    """The module of ours that an import of `name` gets, if any."""
    package, _, rest = name.partition(".")
    if package != "xla_nb":
        return None
    while rest and rest not in MODULES:
        rest = rest.rpartition(".")[0]
    return rest or "__init__"


def broken(module: str, source: str) -> list[str]:
    """What of the rules above a module with this source breaks."""
    here = place(module)
    if here is None:
        return [f"{module}: add it to a row"]
    found = []
    for name, with_file in imports(module, source):
        root, ours = name.partition(".")[0], own(name)
        if ours is not None and ours != module:
            there = place(ours)
            at_home = ours.partition(".")[0] == module.partition(".")[0]
            if there is None or there > here or (there == here and not at_home):
                found.append(f"{module} imports {ours}, which is not above or left of it")
        if root in ("torch", "torch_xla", "_XLAC") and not KNOW_TORCH & {
            module,
            f"{module.partition('.')[0]}.*",
        }:
            found.append(f"{module} imports {name}: only {sorted(KNOW_TORCH)} may")
        if root == "IPython" and with_file and module not in IMPORT_IPYTHON:
            found.append(f"{module} imports {name} with the file: only {IMPORT_IPYTHON} may")
    return found


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_keep_to_the_layers(module: str) -> None:
    assert not broken(module, MODULES[module].read_text())


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("events", "from xla_nb.magics import load"),
        ("events", "from xla_nb import state"),
        ("events", "from xla_nb import __version__"),
        ("events", "import xla_nb"),
        ("events", "from . import state"),
        ("engines", "from ..session import Run"),
        ("topology", "def f():\n    from xla_nb import rank"),
        ("topology", "if TYPE_CHECKING:\n    import xla_nb.rank.process"),
        ("record", "import torch"),
        ("engines.local", "def f():\n    import torch_xla.runtime as xr"),
        ("escapes", "from IPython.core import inputtransformer2"),
        ("brand_new", ""),
    ],
)
def test_a_breach_is_found(module: str, source: str) -> None:
    assert broken(module, source)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("state", "from xla_nb import events"),
        ("engines.local", "from xla_nb.engines import forkserver"),
        ("engines.local", "from . import forkserver"),
        ("source", "from .errors import ProgramError"),
        ("engines.forkserver", "import torch_xla"),
        ("runtimes.xla", "import torch"),
        ("escapes", "def f():\n    import IPython"),
        ("magics", "import IPython, xla_nb.topology.environment"),
        ("__init__", "from xla_nb.errors import XlaNbError"),
    ],
)
def test_what_is_allowed_passes(module: str, source: str) -> None:
    assert not broken(module, source)

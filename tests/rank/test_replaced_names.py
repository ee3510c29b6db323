"""docs/replaced.md lists every name that ranks replace in other libraries."""

import ast
import re
from importlib.metadata import version
from pathlib import Path

import pytest

import xla_nb
from xla_nb.old_names import OLD

pytestmark = pytest.mark.skipif(
    not version("torch_xla").startswith("2.9."), reason="the page is of torch_xla 2.9"
)
PAGE = Path(__file__).parents[2] / "docs" / "replaced.md"
NAME = re.compile(r"`([\w.]+)`")
#: Objects of the process itself, and modules that import names from others.
NOT_ITS_OWN = ("multiprocessing.process._current_process", "ipywidgets.", "xla_nb_cell_")

REPLACED = """\
%%xla_spawn -n 2 --simulate v5litepod-8 -o replaced_names
import collections, functools, sys, types
def found(rank):
    import absl.flags, accelerate, getpass, IPython.display, tqdm.notebook, torch_xla
    import torch_xla.distributed.parallel_loader, torch_xla.distributed.xla_backend
    import torch_xla._dynamo.dynamo_bridge, torch_xla.experimental.custom_kernel

    def is_ours(value):
        if isinstance(value, functools.partial):
            return is_ours(value.func)
        if isinstance(value, types.MethodType):
            return is_ours(value.__func__)
        if isinstance(value, types.SimpleNamespace):
            return any(map(is_ours, vars(value).values()))
        if isinstance(value, types.FunctionType):
            return value.__code__.co_filename.startswith(OURS) or is_ours(
                getattr(value, "__wrapped__", None) or vars(value).get("_torchdynamo_orig_callable")
            )
        kind = value if isinstance(value, type) else type(value)
        return str(kind.__module__).startswith("xla_nb.")

    places = collections.defaultdict(set)
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("xla_nb", "__main__", "__mp_main__"):
            continue
        for key, value in list(vars(module).items()) if module else ():
            if is_ours(value):
                places[id(value)].add(f"{name}.{key}")
            if isinstance(value, type) and value.__module__ == name:
                for own, method in list(vars(value).items()):
                    if is_ours(method):
                        places[id(method)].add(f"{name}.{key}.{own}")
    return list(places.values())
"""


def documented():
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    return {name for row in rows for name in NAME.findall(row.split("|")[1])}


def replaced(notebook):
    """The names of each replaced object."""
    notebook.ok(REPLACED.replace("OURS", repr(str(Path(xla_nb.__file__).parent))))
    places = ast.literal_eval(notebook.ok("print(replaced_names[0])").stdout)
    old = {old.spelling.replace("xm.", "torch_xla.core.xla_model.") for old in OLD}
    old = {name.replace("xr.", "torch_xla.runtime.") for name in old}
    kept = [{name for name in one if not name.startswith(NOT_ITS_OWN)} for one in places]
    return [one for one in kept if one and not one & old]


def test_docs_list_exactly_the_names_replaced_on_ranks(notebook):
    told, found = documented(), replaced(notebook)
    # A class is listed by its own name, and a listed function covers its aliases.
    assert [one for one in found if not any(is_documented(name, told) for name in one)] == []
    assert [name for name in told if not any(is_alias_or_member(name, one) for one in found)] == []


def is_documented(name, told):
    return name in told or name.rpartition(".")[0] in told


def is_alias_or_member(name, places):
    return any(place == name or place.startswith(f"{name}.") for place in places)

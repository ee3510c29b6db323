"""Names that torch_xla has removed still work, with one notice that gives the current spelling."""

import ast
import re
import sys
import types
from importlib import metadata
from pathlib import Path

import pytest

from tests.support.kernel import Notebook
from xla_nb import old_names

PAGE = Path(__file__).parents[1] / "docs" / "compatibility.md"
NOTICE = {old.spelling: old.notice for old in old_names.OLD}
HERE = metadata.version("torch_xla")
#: Names that the installed release lacks; names that it still has are not replaced.
GONE = {old.spelling for old in old_names.OLD if old.gone <= HERE}


def rows(heading):
    """The rows of a table of the page, without backticks."""
    table = PAGE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = [line.replace("`", "").split("|")[1:-1] for line in table.splitlines() if "|" in line]
    return [[cell.strip() for cell in row] for row in found[2:]]


def test_the_page_lists_all_bridged_names():
    answered = [(old.spelling, old.gone, old.today) for old in old_names.OLD]
    assert [tuple(row[:3]) for row in rows("Answered")] == answered


def test_the_page_marks_existing_names_that_are_deprecated():
    marked = [(row[0], row[1]) for row in rows("Still there") if row[0].endswith("†")]
    told = {f"{name.removesuffix(' †')} is deprecated: write {today}" for name, today in marked}
    assert told == set(old_names.DEPRECATED.values())


@pytest.fixture
def release(monkeypatch):
    """Create a module `torch_xla.runtime` with given names, without installed old names."""
    here = old_names._Here()
    monkeypatch.setattr(old_names, "_here", lambda: here)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))

    def make(**names):
        module = types.ModuleType("torch_xla.runtime")
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, "torch_xla.runtime", module)
        return module

    return make


def test_an_existing_name_is_not_replaced(release):
    told = []
    runtime = release(using_pjrt=lambda: "its own")
    old_names.install(told.append)
    assert (runtime.using_pjrt(), told) == ("its own", [])
    assert runtime.requires_pjrt(print) is print
    assert told == [NOTICE["xr.requires_pjrt"]]


def test_installing_old_names_again_keeps_notices_with_the_first_caller(release):
    told, here = [], []
    runtime = release()
    old_names.install(told.append)
    old_names.install(here.append)
    assert runtime.using_pjrt()
    assert (told, here) == ([NOTICE["xr.using_pjrt"]], [])


# ---------------------------------------------------------------- in a notebook


@pytest.fixture(scope="module")
def published(warm_kernels):
    kernel = Notebook(warm=warm_kernels)
    kernel.ok(
        "%load_ext xla_nb\nimport torch, torch_xla\nimport torch_xla.core.xla_model as xm\n"
        "import torch_xla.distributed.xla_multiprocessing as xmp\n"
        "import torch_xla.distributed.parallel_loader as pl\n"
    )
    yield kernel
    kernel.close()


#: Uses each bridged name on two ranks, and modules in both forms of import.
ON_RANKS = """
from torch_xla.core.xla_model import xrt_world_size
from torch_xla.experimental import pjrt
import torch_xla.experimental.xla_sharding as xs
def names(index):
    import torch_xla.runtime as xr
    import torch_xla.distributed.spmd as spmd
    import torch_xla.experimental.xla_sharded_tensor
    from torch_xla.amp import GradScaler
    from torch_xla.amp.grad_scaler import GradScaler as same
    weight = torch.ones(1, device=xr.xla_device(), requires_grad=True)
    optimizer, scaler = torch.optim.SGD([weight], 0.5), GradScaler(init_scale=2.0**16)
    scaler.scale(weight.sum() * 2).backward()
    scaler.step(optimizer)
    scaler.update()
    device = xm.xla_device()
    batches = pl.ParallelLoader([torch.ones(1)], [device]).per_device_loader(device)
    (real,) = xm.xla_real_devices([device])
    return {
        "world": (xm.xrt_world_size(), xrt_world_size(defval=9), pjrt.world_size()),
        "rank": xm.get_ordinal(0) == pjrt.global_ordinal() == index,
        "device": (weight.device == device, ":".join(map(str, xm.parse_xla_device(real))) == real),
        "scaler": (weight.item(), same is GradScaler),
        "pjrt": (xr.using_pjrt(), pjrt.using_pjrt(), xr.requires_pjrt(len)([1])),
        "spmd": (xs.Mesh is spmd.Mesh, xs.mark_sharding is spmd.mark_sharding),
        "loader": [batch.item() for batch in batches],
    }
run = xmp.spawn(names, nprocs=2)
"""
FOUND = {
    "world": (2, 2, 2),
    "rank": True,
    "device": (True, True),
    "scaler": (0.0, True),
    "pjrt": (True, True, 1),
    "spmd": (True, True),
    "loader": [1.0],
}
TOLD_ON_RANKS = [
    "torch_xla.experimental.pjrt",
    "torch_xla.experimental.xla_sharding",
    "torch_xla.experimental.xla_sharded_tensor",
    "torch_xla.amp.grad_scaler",
    "xr.xla_device",
    "torch_xla.amp.GradScaler",
    "xm.xrt_world_size",
    "xm.get_ordinal",
    "xm.parse_xla_device",
    "xr.using_pjrt",
    "xr.requires_pjrt",
]


def test_old_names_work_on_ranks_and_the_notebook_shows_each_notice_once(published):
    shown = published.ok(ON_RANKS)
    assert ast.literal_eval(published.value("run.results")) == {0: FOUND, 1: FOUND}
    told = [line for line in shown.stderr.splitlines() if "was removed in" in line]
    assert sorted(told) == sorted(NOTICE[name] for name in TOLD_ON_RANKS if name in GONE)
    again = published.ok("run = xmp.spawn(names, nprocs=2)\nxm.xrt_world_size()")
    assert "was removed in" not in again.stderr


WARNED = """
def step(index):
    import warnings
    weight = torch.ones(1, device=xm.xla_device())
    xm.mark_step()
    xm.mark_step()
    warnings.warn("of the program's own", DeprecationWarning)
xmp.spawn(step, nprocs=2)
"""


def test_a_torch_xla_warning_on_every_rank_is_shown_once(published):
    shown = published.ok(WARNED)
    assert "\n".join(shown.error_lines).count("DeprecationWarning: of the program's own") == 2
    again = published.ok(WARNED)
    assert not any("torch_xla" in text for text in (again.stdout, again.stderr))
    warns = published.value("hasattr(xm.mark_step, '__deprecated__')") == "True"
    told = [line for line in shown.stderr.splitlines() if "mark_step" in line]
    assert told == [old_names.DEPRECATED["Use torch_xla.sync instead"]] * warns


def test_a_torch_warning_on_every_rank_is_shown_once(published):
    line = "xmp.spawn(lambda _: torch.set_default_tensor_type('torch.FloatTensor'), nprocs=2)"
    told = old_names.DEPRECATED["torch.set_default_tensor_type() is deprecated"]
    assert published.ok(line).stderr == told + "\n"
    assert published.ok(line).stderr == ""


FORMER = """
def f(index):
    device = xm.xla_device()
    both = xm.get_xla_supported_devices("TPU"), xm.get_xla_supported_devices(devkind=["TPU"])
    of_today = xm.get_xla_supported_devices(1), xm.get_xla_supported_devices(max_devices=1)
    return *both, *of_today
run = xmp.spawn(f, nprocs=2)
"""


def test_functions_accept_removed_parameters_with_one_notice_each(published):
    told = published.ok(FORMER).stderr.splitlines()
    assert published.value("run[1]") == f"{(*[['xla:0']] * 4,)}"
    gone = "{} was removed in torch_xla {}: {}".format
    assert [line for line in told if " of " in line] == [
        gone("devkind of xm.get_xla_supported_devices", "2.8", "leave it out"),
    ]


REDUCED = """
import numpy as np
def f(index):
    mean = xm.mesh_reduce("mean", np.mean([index, 1.0]), np.mean)
    kinds = [np.float32(index), np.array([True]), np.array(["a"]), {"x": np.int64(3)}]
    kinds = xm.mesh_reduce("kinds", kinds, lambda all_of_them: all_of_them[1])
    return float(mean), xm.mesh_reduce("each", np.full(2, index), np.concatenate).tolist(), kinds
run = xmp.spawn(f, nprocs=2)
"""


def test_mesh_reduce_works_with_numpy_scalars_and_arrays(published):
    published.ok(REDUCED)
    kinds = "[np.float32(1.0), array([ True]), array(['a'], dtype='<U1'), {'x': np.int64(3)}]"
    assert published.value("run[0]") == f"(0.75, [0, 0, 1, 1], {kinds})"


def test_old_names_in_the_notebook_do_not_open_its_device(published):
    published.ok("from torch_xla.core.xla_model import get_ordinal")
    asked = "xm.xrt_world_size(), get_ordinal(), xm.xrt_world_size(8)"
    assert published.value(asked) == "(1, 0, 8)"
    assert published.value("torch_xla._XLAC._xla_runtime_is_initialized()") == "False"


def test_the_first_use_in_the_notebook_shows_a_notice(published):
    published.ok("import torch_xla.experimental as experimental")
    shown = published.ok("same = lambda x: x\nfor _ in range(2): experimental.compile(same)(1)")
    assert shown.stderr == NOTICE["torch_xla.experimental.compile"] + "\n"
    shown = published.ok("from torch_xla.experimental import tpu\ntpu.num_available_chips()")
    assert shown.stderr == NOTICE["torch_xla.experimental.tpu"] + "\n"


def test_names_listed_as_still_existing_exist(published):
    short = {name: module for module, name in old_names.SHORT.items()}
    names = [re.sub(r" †$", "", row[0]) for row in rows("Still there")]
    paths = [".".join([short.get((first := n.split("."))[0], first[0]), *first[1:]]) for n in names]
    assert len(paths) > 20
    found = published.ok(
        f"import pkgutil\nfor path in {paths}:\n"
        "    try: pkgutil.resolve_name(path)\n    except Exception as problem: print(path, problem)"
    )
    assert not found.lines


@pytest.mark.parametrize("index", [1, 2])
def test_asking_for_another_ranks_device_explains_that_each_rank_has_its_own(published, index):
    for code in (f"xm.xla_device(n={index})", f"xmp.spawn(lambda _: torch_xla.device({index}))"):
        told = published.run(code).error
        assert (
            f"This process has no XLA device {index}, only xla:0: each rank has its own device."
            in told
        )

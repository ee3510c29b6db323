"""Calls in programs from 2020 work as they did then, or are refused."""

import pytest

ABOVE = """
import io, torch, torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.xla_multiprocessing as xmp
"""
#: The TPUFitter that many Kaggle notebooks copied.
FITTER = """
class TPUFitter:
    def __init__(self, path): self.path = path
    def log(self, message):
        xm.master_print(message)
        with open(self.path, "a+") as logger:
            xm.master_print(f"{{message}}", logger)
    def fit(self, index):
        for epoch in range(2): self.log(f"epoch {{epoch}}")
fitter = TPUFitter({path!r})
run = xmp.spawn(fitter.fit, nprocs=2)
"""


@pytest.fixture
def cells(notebook):
    notebook.ok(ABOVE)
    return notebook


def test_master_print_writes_to_a_file_in_second_position(cells, tmp_path):
    file = tmp_path / "log.txt"
    shown = cells.ok(FITTER.format(path=str(file)))
    assert file.read_text() == "epoch 0\nepoch 1\n"
    assert [line for line in shown.lines if "epoch" in line] == ["[0] epoch 0", "[0] epoch 1"]
    assert "TextIOWrapper" not in shown.stdout


STREAMS = """
def prints(index):
    own, found = io.StringIO(), []
    xm.master_print(torch.ones(1).item(), own, True, True)
    xm.master_print("named", fd=own)
    class Tee:
        def write(self, text): own.write(text.upper())
        def flush(self): pass
    xm.master_print("teed", Tee())
    xm.master_print("a", 1, ["b"])
    xm.master_print("only")
    return own.getvalue()
run = xmp.spawn(prints, nprocs=2)
"""


def test_master_print_accepts_any_stream_and_prints_other_values(cells):
    shown = cells.ok(STREAMS)
    assert cells.value("run[0]") == repr("1.0\nnamed\nTEED\n")
    assert shown.lines[-2:] == ["[0] a 1 ['b']", "[0] only"]
    assert cells.value("run[1]") == "''"


def test_master_print_in_the_notebook_writes_to_a_stream(cells):
    cells.ok("stream = io.StringIO()\nxm.is_master_ordinal = lambda local=False: True")
    shown = cells.ok("xm.master_print('here', stream)")
    assert cells.value("stream.getvalue()") == repr("here\n")
    assert "here" not in shown.stdout


def test_former_fixed_batch_size_option_of_the_loader_is_refused(cells):
    cells.ok(
        "def loads(index, *more):\n"
        "    device = xm.xla_device()\n"
        "    loader = pl.ParallelLoader([torch.ones(1)], [device], *more)\n"
        "    return [batch.item() for batch in loader.per_device_loader(device)]"
    )
    assert cells.value("xmp.spawn(loads, args=(0, 1), nprocs=2)[1]") == "[1.0]"
    shown = cells.run("xmp.spawn(loads, args=(0, True), nprocs=2)")
    assert "pl.ParallelLoader no longer has fixed_batch_size" in shown.error

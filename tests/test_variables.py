"""Variables of real ranks, described there and compared in the notebook."""

import pytest

from tests.support.kernel import Notebook

TRAIN = """
%%xla_spawn -n 4 -o run --view none
import torch, torch_xla
import torch_xla.core.xla_model as xm
from torch_xla.debug import metrics
from xla_nb.rank.variables import describe, names_of, values

def compiled():
    return metrics.counter_value("UncachedCompile") + metrics.counter_value("ExecuteComputation")

def train(rank):
    torch.manual_seed(7 if rank == 2 else 0)
    device = torch_xla.device()
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    data = torch.ones(16, 4, device=device) * (rank + 1)
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(data).square().mean()
        loss.backward()
        xm.optimizer_step(optimizer)
        torch_xla.sync(wait=True)  # or the last step would be counted later
    pending = loss * 2
    writer = "a text" if rank == 0 else None
    names = {name: held for name, held in locals().items() if held is not None}
    before = compiled()
    told = describe(names, ["model", "optimizer", "loss", "pending", "writer", "data", "rank"])
    sent = values(names, [("model", ".0.weight"), ("model", ".1.bias")])
    disturbed = compiled() - before
    computed = describe(names, ["pending"], compute=True)
    return told, sent, disturbed, computed
"""
COMPARE = """
from xla_nb.run.comparing import compare, questions
from xla_nb.views.variables import Variables
told = {rank: result[0] for rank, result in run.results.items()}
first = {one.name: one for one in compare(told)}
asked = questions(first.values())
sent = {rank: result[1] for rank, result in run.results.items()}
whole = {one.name: one for one in compare(told, sent)}
"""


@pytest.fixture(scope="module")
def notebook():
    kernel = Notebook()
    kernel.ok("%load_ext xla_nb")
    kernel.ok(TRAIN.strip())
    kernel.ok(COMPARE)
    yield kernel
    kernel.close()


def test_no_rank_compiled_or_executed_anything(notebook):
    assert notebook.value("{result[2] for result in run.results.values()}") == "{0}"


def test_the_rank_with_another_seed_is_found(notebook):
    assert notebook.value("first['model'].deviating") == "(2,)"
    asked = "[rank for rank in sorted(asked) if ('model', '.0.weight') in asked[rank]]"
    assert notebook.value(asked) == "[0, 2]"


def test_how_much_its_parameters_differ_is_counted(notebook):
    leaf = "{leaf.path: leaf for leaf in whole['model'].leaves}['.0.weight']"
    assert notebook.value(f"{leaf}.groups[1].difference.of") == "32"
    assert float(notebook.value(f"{leaf}.groups[1].difference.largest")) > 0


def test_values_that_are_only_recorded_are_pending_and_computed_if_asked(notebook):
    assert notebook.value("first['pending'].verdict") == "'pending'"
    assert notebook.value("{r[3][0].leaves[0].state for r in run.results.values()}") == "{'known'}"


def test_the_table_of_real_ranks(notebook):
    lines = notebook.ok("Variables(list(whole.values()), 4)").result.splitlines()
    assert lines[0].split() == [
        "Name",
        "Type",
        "Value",
        "Device",
        "Size",
        "Ranks",
        "Across",
        "ranks",
    ]
    assert any(line.startswith("writer ") and line.endswith("only on rank 0") for line in lines)
    assert any("0.weight: rank 2 differs; 32 of 32 elements" in line for line in lines)
    assert max(map(len, lines)) <= 100

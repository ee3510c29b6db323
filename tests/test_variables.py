"""Variables of real ranks: described on the ranks, compared in the notebook."""

import pytest

# Later cells do not repeat imports inside the function.
TRAIN = """
%%xla_spawn -n 4 -o of_vars --view none
def train_of_vars(rank):
    import torch, torch_xla
    import torch_xla.core.xla_model as xm
    from torch_xla.debug import metrics
    from xla_nb.rank.variables import describe

    def compiled():
        names = "UncachedCompile", "ExecuteComputation"
        return sum(map(metrics.counter_value, names))

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
    disturbed = compiled() - before
    computed = describe(names, ["pending"], compute=True)
    return told, disturbed, computed
"""
COMPARE = """
from xla_nb.monitor.variable_comparison import compare
from xla_nb.views.variables import Variables
whole = {one.name: one for one in compare({r: out[0] for r, out in of_vars.results.items()})}
"""


@pytest.fixture(scope="module")
def notebook(kernel):
    kernel.ok(TRAIN.strip())
    kernel.ok(COMPARE)
    return kernel


def test_describing_variables_compiles_and_executes_nothing(notebook):
    assert notebook.value("{result[1] for result in of_vars.results.values()}") == "{0}"


def test_the_rank_with_a_different_seed_is_found(notebook):
    assert notebook.value("whole['model'].deviating") == "(2,)"


def test_lazy_values_are_pending_unless_computed_on_request(notebook):
    assert notebook.value("whole['pending'].verdict") == "'pending'"
    assert (
        notebook.value("{r[2][0].leaves[0].state for r in of_vars.results.values()}") == "{'known'}"
    )


def test_the_table_shows_variables_of_real_ranks(notebook):
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
    assert any("0.weight: rank 2 differs; norm " in line for line in lines)

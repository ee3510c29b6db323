"""The title of an ended run names the problems that slowed it down."""

import ast
import html
import re

import pytest

from xla_nb.views.rendering import style

pytestmark = pytest.mark.usefixtures("soon")

# Waits in the kernel until `is_so` holds for the newest sample of rank 0, then ends the loop on the
# ranks: all at the same step, one that none has reached yet if they wait for each other.
SAMPLED = """
import os, time
def sampled(run, flag, is_so):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not run.done:
        sample = run.sample(0)
        if sample is not None and is_so(sample):
            break
        time.sleep(0.05)
    with open(f"{flag}.new", "w") as file:
        file.write(str(sample.steps + 20 if sample else 0))
    os.rename(f"{flag}.new", flag)
def title(run):
    import xla_nb
    saved = xla_nb.open_run(str(run.record.path))._repr_mimebundle_()
    return saved["text/plain"].splitlines()[0], saved["text/html"]
"""
LOOP = """
%%xla_spawn -n 2 -o {name} --bg --view none
import torch, torch_xla, time
from pathlib import Path
def main(rank):
    x = torch.ones(4000, 8, device=torch_xla.device())
    torch_xla.sync()
    step, last = 0, Path({flag!r})
    while not (last.exists() and step >= int(last.read_text())):
        step += 1
{body}
        torch_xla.sync()
"""


@pytest.fixture
def ended(notebook, tmp_path):
    """The saved title and HTML of a loop with this body, which ends once `is_so` holds."""
    flag = str(tmp_path / "over")
    notebook.ok(SAMPLED)

    def ended(name, body, is_so):
        notebook.ok(LOOP.strip().format(name=name, flag=flag, body=body.strip("\n")))
        try:
            notebook.ok(f"sampled({name}, {flag!r}, lambda sample: {is_so}); {name}.wait(60)")
        finally:
            (tmp_path / "over").write_text("0")
        return ast.literal_eval(notebook.value(f"title({name})"))

    return ended


COMPILES = "sample.changes_at and sample.compile_seconds > 0.6"


@pytest.mark.slow
def test_title_names_line_with_changing_shape_and_compile_time(ended):
    body = """
        y = torch.ones(step, 8, device=torch_xla.device())
        for _ in range(100):
            y = torch.sin(y)
"""
    title, page = ended("shapes", body, COMPILES)
    told = re.match(
        r"! 2 ranks finished in [\d.]+ s; line 10 gives a new shape in each step "
        r"\(\((\d+), 8\), then \((\d+), 8\)\), so each compiled a new graph; "
        r"compiling took (?:up to )?[\d.]+ m?s of it · ",
        title,
    )
    assert told, title
    assert int(told[2]) == int(told[1]) + 1
    sentence = title.removeprefix("! ").partition(" · ")[0]
    assert sentence in html.unescape(re.sub("<[^>]+>", "", page))
    assert style.AMBER in page.partition("</b>")[0]


def test_title_names_the_line_whose_shapes_are_compiled_not_one_that_only_alternates(ended):
    body = """
        y = torch.ones(8 if step % 2 else 30, 8, device=torch_xla.device())
        torch.nonzero(y)
        if step > 30:
            y = torch.ones(step, 8, device=torch_xla.device())
        for _ in range(100):
            y = torch.sin(y)
"""
    title, _ = ended("alternating", body, f"{COMPILES} and sample.compiles > 30")
    assert "; line 13 gives a new shape in " in title


def test_title_names_line_with_changing_number(ended):
    body = """
        y = x[step : step + 4]
        for _ in range(100):
            y = torch.sin(y)
"""
    title, _ = ended("numbers", body, COMPILES)
    assert "; line 10 uses a number that changes in each step (" in title


def test_title_names_no_line_if_the_change_is_unknown(ended):
    body = """
        y = x * 2
        for _ in range(60 + step):  # no shape and no number: each step has more operations
            y = torch.sin(y)
"""
    title, _ = ended("unknown", body, "sample.compile_seconds > 0.6 and sample.steps > 12")
    assert re.search(
        r" s; each step compiled a new graph; compiling took (up to )?[\d.]+ m?s of it · ", title
    ), title


def test_title_names_line_of_a_cpu_fallback(ended):
    body = """
        torch.nonzero(x)  # and nothing that is compiled
        time.sleep(0.02)
"""
    title, _ = ended("fallback", body, "sample.fallbacks_at and sample.steps > 12")
    assert "; every step ran aten::nonzero on the CPU at line 10 · " in title


def test_title_names_the_rank_that_others_waited_for(ended):
    body = """
        import torch_xla.core.xla_model as xm
        time.sleep(0.05 * rank)
        y = xm.all_reduce("sum", x)
"""
    title, _ = ended("awaited", body, "sample.waited > 0.6 and sample.steps > 12")
    told = r"; the other waited at least [\d.]+ m?s of it for rank 1 · "
    assert re.search(told, title), title


def test_title_of_a_stopped_run_names_the_ranks_waiting(notebook, tmp_path):
    notebook.ok(SAMPLED)
    cell = """
%%xla_spawn -n 3 -o halted --bg --view none
import torch, torch_xla, time
import torch_xla.core.xla_model as xm
def main(rank):
    while rank == 1:
        time.sleep(60)
    xm.all_reduce("sum", torch.ones(2, device=torch_xla.device()))
"""
    notebook.ok(cell.strip())
    flag = str(tmp_path / "over")
    notebook.ok(f"sampled(halted, {flag!r}, lambda sample: (sample.waited or 0) > 1.1)")
    notebook.ok("halted.stop(); halted.join_end(60)")
    title, _ = ast.literal_eval(notebook.value("title(halted)"))
    told = (
        "! Stopped by run.stop(); 2 ranks had been waiting 1 s for rank 1, at line 6 · ended after "
    )
    assert title.startswith(told), title


def test_detecting_changing_shapes_does_not_change_results(notebook):
    cell = """
%%xla_spawn -n 1 -o looked --view none
import torch, torch_xla, time
def main(rank):
    torch.manual_seed(0)
    net, twin = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)
    twin.load_state_dict(net.state_dict())
    net.to("xla")
    losses = []
    for model, device in ((net, "xla"), (twin, "cpu")):
        optimizer, seen = torch.optim.SGD(model.parameters(), lr=0.1), []
        for step in range(1, 16):
            x = torch.linspace(0, 1, 4 * step).reshape(step, 4).to(device)
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            optimizer.step()
            torch_xla.sync()
            seen.append(loss.item())
            time.sleep(0.05)
        losses.append(seen)
    return losses, torch._C._len_torch_function_stack()
"""
    notebook.ok(cell.strip())
    assert "line 12" in notebook.value("looked.sample(0).changes_at")
    (on_device, on_cpu), depth = ast.literal_eval(notebook.value("looked[0]"))
    assert depth == 0
    assert on_device == pytest.approx(on_cpu, rel=1e-4)


@pytest.mark.parametrize(
    "meet",
    ['xm.mesh_reduce("x", rank, sum)', pytest.param('xm.rendezvous("x")', marks=pytest.mark.slow)],
)
def test_title_names_the_late_rank_if_steps_only_synchronize(notebook, meet):
    notebook.ok(SAMPLED)
    cell = f"""
%%xla_spawn -n 4 -o met --view none
import time, xla_nb
import torch_xla.core.xla_model as xm
def main(rank):
    for _ in xla_nb.progress(range(40)):
        time.sleep(0.1 * (rank == 2))
        {meet}
"""
    notebook.ok(cell.strip())
    title, _ = ast.literal_eval(notebook.value("title(met)"))
    told = r"; the others waited at least [\d.]+ m?s of it for rank 2 · "
    assert re.search(told, title), title


def test_long_compilation_of_few_graphs_is_no_warning(notebook):
    notebook.ok(SAMPLED)
    cell = """
%%xla_spawn -n 2 -o graphs --view none
import torch, torch_xla
import torch_xla.debug.metrics as met
def main(rank):
    x, operations = torch.ones(2, device="xla"), 1000
    while (met.metric_data("CompileTime") or (0, 0))[1] < 1.2e9:
        for _ in range(operations):
            x = torch.sin(x) + x[:1]
        torch_xla.sync()
        operations *= 2
"""
    notebook.ok(cell.strip())
    title, page = ast.literal_eval(notebook.value("title(graphs)"))
    told = r"✓ 2 ranks finished in [\d.]+ s, (up to )?[\d.]+ m?s of it compiling \d graphs?"
    assert re.match(told + r"( on rank \d)? · ", title), title
    assert style.AMBER not in page.partition("</b>")[0]
    listed = notebook.ok("%xla_runs 1").data
    assert f"  {title[2:].partition(' · ')[0]}" in listed["text/plain"]
    assert "✓ finished" in re.sub("<[^>]*>", "", listed["text/html"])


def test_title_names_the_rank_waited_for_most_of_the_run(notebook):
    notebook.ok(SAMPLED)
    notebook.ok(
        "%%xla_spawn -n 3 -o waited_ --view none\nimport time, torch_xla.core.xla_model as xm\n"
        "def f(rank):\n    time.sleep(rank == 1)\n    xm.rendezvous('late')"
    )
    text, _ = ast.literal_eval(notebook.value("title(waited_)"))
    told = r"finished in .*; the others waited at least [\d.]+ m?s of it for rank 1"
    assert re.search(told, text)

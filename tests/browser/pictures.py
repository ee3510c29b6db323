"""Takes the screenshots in docs/images: `python tests/browser/pictures.py [NAME ...]`.

Each one shows a cell of a real JupyterLab, in the theme that its name says. Run this by hand.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from playwright.sync_api import BrowserContext, expect, sync_playwright

from benchmarks.nodes import cluster
from tests.browser.lab import DARK, LIGHT, Lab, LabNotebook, browser
from tests.browser.test_flows import Flow, flow

IMAGES = Path(__file__).parents[2] / "docs" / "images"

TRAIN = """\
import time, torch, torch_xla, xla_nb

model = torch.nn.Linear(64, 8).to(torch_xla.device())
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
torch.manual_seed(rank)
for step in xla_nb.progress(range(400), label="batches"):
    x = torch.randn(128, 64)
    y = x[:, :8] * 2
    loss = torch.nn.functional.mse_loss(model(x.to(torch_xla.device())), y.to(torch_xla.device()))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    torch_xla.sync()
    xla_nb.report(loss=loss, accuracy=1 - 1 / (1.2 + step / 40 + rank / 9))
    if step % 20 == 0:
        print(f"\\x1b[32mstep {step}\\x1b[0m: loss {loss.item():.3f}", flush=True)
    if step == 240:
        hold()
"""
SLOW = """\
import time, torch, torch_xla, torch_xla.core.xla_model as xm, xla_nb

device = torch_xla.device()
model = torch.nn.Linear(64, 8).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
torch.manual_seed(rank)
for step in xla_nb.progress(range(900), label="step"):
    x = torch.randn(128, 64)
    if rank == 2:
        time.sleep(0.03)
    loss = torch.nn.functional.mse_loss(model(x.to(device)), (x[:, :8] * 2).to(device))
    optimizer.zero_grad()
    loss.backward()
    xm.optimizer_step(optimizer)
    torch_xla.sync()
    xla_nb.report(loss=loss, accuracy=1 - 1 / (1.2 + step / 40 + rank / 9))
    if step % 100 == 0 and rank == 0:
        print(f"\\x1b[32mstep {step}\\x1b[0m: loss {loss.item():.3f}", flush=True)
    if step == 10:
        print("warming up is over", flush=True)
"""
FAIL = """\
import torch

def train_step(batch):
    weights = torch.ones(128, 10)
    return batch @ weights

print("loading shard", rank, flush=True)
if rank == 1:
    hold("fine")
else:
    if rank != 2:
        hold("others")
    train_step(torch.ones(32, 64))
"""
MANY = """\
import xla_nb
for step in xla_nb.progress(range(100), label="steps"):
    xla_nb.report(loss=(1 + rank / 99) / (step + 2))
    if step == 20 + rank:
        print("shard", rank, "is at step", step, flush=True)
        hold()
"""
LIVE = (
    """\
import torch, torch_xla, torch_xla.core.xla_model as xm, xla_nb
torch.manual_seed(7 if rank == 2 else 0)
model = torch.nn.Linear(64, 8).to(device)
lr = 0.02
optimizer = torch.optim.SGD(model.parameters(), lr)""",
    *2
    * (
        """\
for step in range(120):
    x = torch.randn(128, 64)
    loss = torch.nn.functional.mse_loss(model(x.to(device)), (x[:, :8] * 2).to(device))
    optimizer.zero_grad()
    loss.backward()
    xm.optimizer_step(optimizer)
    torch_xla.sync()
    xla_nb.report(loss=loss)""",
    ),
)


def training(notebook: LabNotebook) -> Flow:
    run = flow(notebook, "-n 4", TRAIN)
    run.in_phase("waiting", 4)
    for rank in range(4):
        row = run.panel.locator(f'.xn-row[data-rank~="{rank}"]')
        expect(row.filter(has_text="step 240")).to_be_visible()
    return run


def picture(run: Flow, name: str) -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    run.output.scroll_into_view_if_needed()
    run.output.screenshot(path=IMAGES / f"{name}.png")


def panel(lab: Lab, notebook: LabNotebook) -> None:
    run = flow(notebook, "-n 8", SLOW)
    expect(run.panel.locator(".xn-headline")).to_contain_text("for rank 2")
    expect(run.rows("step 200")).to_be_visible()
    picture(run, "panel-light")
    notebook.theme(DARK)
    expect(run.panel).to_have_attribute("data-dark", "true")
    picture(run, "panel-dark")
    notebook.theme(LIGHT)
    run.ended()


def saved(lab: Lab, notebook: LabNotebook) -> None:
    run = training(notebook)
    run.let_go()
    run.ended()
    notebook.save()
    name = lab.write(lab.read(notebook.name))
    with lab.open(name, kernel=False) as reopened:
        reopened.page.set_viewport_size({"width": 1280, "height": 1600})
        stays = Flow(reopened, run.cell, run.number)
        picture(stays, "saved-light")
        reopened.theme(DARK)
        picture(stays, "saved-dark")


def errors(lab: Lab, notebook: LabNotebook) -> None:
    run = flow(notebook, "-n 4 --grace 300", FAIL)
    run.in_phase("failed", 1)
    run.let_go("others")
    run.in_phase("failed", 3)
    picture(run, "panel-errors-live")
    run.let_go("fine")
    run.ended()
    picture(run, "panel-errors")


def many(lab: Lab, notebook: LabNotebook) -> None:
    run = flow(notebook, "-n 64", MANY)
    run.in_phase("waiting", 64)
    expect(run.rows("shard 63")).to_be_visible()
    picture(run, "panel-64")
    run.let_go()
    run.ended()


def hosts(lab: Lab, notebook: LabNotebook) -> None:
    with cluster(3) as address:
        notebook.execute(f"import os; os.environ['RAY_ADDRESS'] = {address!r}")
        run = flow(notebook, "--on ray --hosts 3 -n 2", TRAIN)
        for rank in range(6):
            row = run.panel.locator(f'.xn-row[data-rank~="{rank}"]')
            expect(row.filter(has_text="step 240")).to_be_visible()
        picture(run, "hosts-light")
        run.let_go()
        run.ended()
        notebook.execute("import xla_nb; xla_nb.release()")


def live(lab: Lab, notebook: LabNotebook) -> None:
    started = notebook.execute("%xla_start -n 4")
    for cell in LIVE:
        notebook.execute(f"%%xla\n{cell}")
    notebook.execute("%%xla 1\nmodel.weights")
    shown = notebook.output(started)
    shown.scroll_into_view_if_needed()
    shown.locator(".xn-panel").screenshot(path=IMAGES / "live-light.png")
    notebook.execute("%xla_shutdown")


PICTURES: list[Callable[[Lab, LabNotebook], None]] = [panel, errors, saved, many, hosts, live]


def main(names: list[str], chromium: BrowserContext) -> None:
    with tempfile.TemporaryDirectory() as home:
        lab = Lab(chromium, Path(home))
        try:
            with lab.open(["%load_ext xla_nb"]) as notebook:
                notebook.page.set_viewport_size({"width": 1280, "height": 1600})
                notebook.run(0)
                notebook.done(0)
                for make in PICTURES:
                    if not names or make.__name__ in names:
                        make(lab, notebook)
        finally:
            lab.close()


if __name__ == "__main__":
    expect.set_options(timeout=120_000)
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as home:
        chromium = browser(playwright, Path(home))
        main(sys.argv[1:], chromium)
        chromium.close()

"""The reported pace of a run is accurate: waiting shares, steps and remaining time."""

import ast
import itertools
import re

import pytest

from tests.support.shown import words

# The panel's content until the run ends, and the saved text.
WATCH = """
import time
from xla_nb.views import facts, rendering
from xla_nb.views.observer import Observer
def watched(run):
    observer, seen = Observer(run), []
    while not seen or seen[-1][2] is None:
        observer.sample()
        now = observer.snapshot()
        etas = [bar.eta for card in now.cards for bar in card.bars if bar.eta]
        steps = [card.step for card in now.cards if card.step is not None]
        seen.append((now.diagnosis.sentence, etas, now.ok, steps))
        time.sleep(0.1)
    ended = observer.look()
    return seen, rendering.render_text(ended), rendering.render_html(ended)
"""


@pytest.fixture
def watched(notebook):
    """Runs a cell; returns its sentences, remaining times, step times and saved text."""
    notebook.ok(WATCH)

    def watched(cell):
        notebook.ok(f"%%xla_spawn -n 2 -o paced --bg --view none\n{cell.strip()}")
        seen, text, html = ast.literal_eval(notebook.value("watched(paced)"))
        sentences, etas, _, steps = zip(*seen, strict=True)
        return (
            sentences,
            [*itertools.chain(*etas)],
            [*itertools.chain(*steps)],
            f"{text}\n{words(html)}",
        )

    return watched


LOADER = """
import time, torch, torch_xla, xla_nb
import torch_xla.distributed.parallel_loader
class Items(torch.utils.data.Dataset):
    def __len__(self):
        return {items}
    def __getitem__(self, index):
        time.sleep({seconds})
        return torch.ones(2)
def main(rank):
    loader = torch.utils.data.DataLoader(Items())
    for batch in {loop}:
        time.sleep({work})
        torch_xla.sync()
"""


@pytest.mark.parametrize(
    "loop",
    (
        pytest.param("loader", marks=pytest.mark.slow),
        pytest.param("xla_nb.progress(loader)", marks=pytest.mark.slow),
        "torch_xla.distributed.parallel_loader.MpDeviceLoader(loader, 'xla')",
        pytest.param("xla_nb.progress(Items()[n] for n in range(40))", marks=pytest.mark.slow),
    ),
)
def test_slow_first_batch_is_not_reported_as_waiting_for_data(watched, loop):
    seconds = "3.0 if index == 0 else 0.0"  # like starting workers or importing a library
    cell = LOADER.format(items=40, seconds=seconds, work=0.1, loop=loop)
    sentences, _, _, text = watched(cell)
    assert not [one for one in sentences if "for data" in one]
    assert text.startswith("✓ 2 ranks finished in ")
    spent = re.findall(r"waiting for data ([\d.]+) s", text.partition("whole run")[2])
    assert all(float(each) >= 2.5 for each in spent)
    assert bool(spent) == ("for n in" not in loop)  # a generator may train


@pytest.mark.usefixtures("soon")
def test_slow_loader_is_reported_and_its_cost_is_saved(watched):
    cell = LOADER.format(items=60, seconds=0.03, work=0.015, loop="loader")
    sentences, _, _, text = watched(cell)
    live = r"Waiting for data took [\d.]+ s of the last [\d.]+ s"
    assert [one for one in sentences if re.fullmatch(live, one)]
    told = re.match(
        r"! 2 ranks finished in [\d.]+ s; waiting for data took (?:up to )?([\d.]+) s of it ·", text
    )
    assert told, text
    strip, *_ = re.findall(r"waiting for data ([\d.]+) s", text.partition("whole run")[2])
    assert float(told[1]) == pytest.approx(float(strip), rel=0.25)


STEPS = """
import time, torch, torch_xla, xla_nb
import torch_xla.core.xla_model as xm
from torch_xla.distributed.parallel_loader import MpDeviceLoader
def main(rank):
    device = torch_xla.device()
    model = torch.nn.Linear(4, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = MpDeviceLoader(torch.utils.data.DataLoader(torch.ones(40, 4), batch_size=2), device)
    for batch in {loop}:
        model(batch).sum().backward()
        xm.optimizer_step(optimizer, barrier=True)
"""


def test_steps_are_counted_by_the_loop(watched):
    *_, text = watched(STEPS.format(loop="xla_nb.progress(loader, total=20)"))
    assert re.search(r"\bsteps 20\b", text), text
    assert "syncs" not in text


def test_step_markers_without_a_loop_are_called_syncs(watched):
    *_, text = watched(STEPS.format(loop="loader"))
    assert re.search(r"\bsyncs \d\d\b", text), text
    assert "steps" not in text


def test_step_time_includes_waiting(watched):
    _, _, steps, _ = watched("""
import time, torch, torch_xla
import torch_xla.core.xla_model as xm
def main(rank):
    x = torch.ones(2, device=torch_xla.device())
    for _ in range(30):
        time.sleep(0.1 * rank)
        x = xm.all_reduce("sum", x)
        torch_xla.sync()
""")
    assert steps
    assert min(steps) > 0.07


def test_remaining_time_ignores_compiling_steps(watched):
    _, etas, _, _ = watched("""
import time, torch, torch_xla, xla_nb
import torch_xla.debug.metrics as met
def main(rank):
    x = torch.ones(2, device=torch_xla.device())
    torch_xla.sync()
    size = 2
    for step in xla_nb.progress(range(400)):
        begun = time.monotonic()
        while step < 4 and time.monotonic() < begun + 0.5:
            size += 1
            x = torch.ones(size, device=torch_xla.device())
            for _ in range(100):
                x = torch.sin(x)
            torch_xla.sync()
        time.sleep(0.01)
        torch_xla.sync()
""")
    assert etas
    assert max(etas) < 30  # 400 steps like the first ones would take 200 s

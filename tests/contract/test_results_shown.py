"""Results of ranks are shown in the cell and in every other view of the run."""

import html
import re
import subprocess
import sys

import pytest

DRAWN = """\
class Drawn:
    def __init__(self, rank): self.rank = rank
    def _repr_html_(self): return f"<b>drawn by {self.rank}</b>"
    def __repr__(self): return "not drawn"
"""
SCRIPT = """\
import xla_nb
def train(rank):
    return {"loss": 0.25, "steps": 375}
if __name__ == "__main__":
    print(xla_nb.spawn(train, n=2))
"""


def words(page):
    """The visible text of HTML, on one line."""
    return " ".join(html.unescape(re.sub(r"<style.*?</style>|<[^>]*>", " ", page)).split())


def card(shown):
    """A cell's snapshot of the run, as text and as the visible text of its HTML."""
    pictures = [
        message["content"]["data"]
        for message in shown.messages
        if "application/vnd.xla-nb.run+json" in message["content"].get("data", {})
    ]
    own = [data for data in pictures if "live ranks" not in data["text/plain"]]
    return own[-1]["text/plain"], words(own[-1]["text/html"])


@pytest.fixture(scope="module")
def live(kernel):
    """Runs a cell on the live ranks of these tests."""
    kernel.ok("%xla_start -n 4", timeout=300)
    yield lambda cell: kernel.ok(f"%%xla\n{cell}")
    kernel.ok("%xla_shutdown")


def test_equal_results_are_shown_once(notebook):
    text, page = card(notebook.ok("%%xla_spawn -n 4\ndef same(rank):\n    return (4, 375)"))
    assert "\n[0–3] returned (4, 375)\n" in text
    assert "returned 0–3 → (4, 375)" in page


def test_different_results_are_shown_with_their_ranks(live):
    text, page = card(live("rank * 3.0"))
    assert "[0] returned 0.0\n[1] returned 3.0\n[2] returned 6.0\n[3] returned 9.0\n" in text
    assert "returned 0 → 0.0 · 1 → 3.0 · 2 → 6.0 · 3 → 9.0" in page


def test_dicts_of_numbers_are_a_table_with_a_column_per_rank(live):
    text, page = card(live('{"loss": 0.25 + (rank > 1) / 8, "steps": 375, "grad": float("nan")}'))
    assert [re.split(r"  +", line) for line in text.splitlines()[2:6]] == [
        ["returned", "[0, 1]", "[2, 3]"],
        ["loss", "0.25", "0.375"],
        ["steps", "375", "375"],
        ["grad", "nan", "nan"],
    ]
    assert "returned 0, 1 2, 3 loss 0.25 0.375 steps 375 375 grad nan nan" in page


def test_only_equal_tensors_are_grouped(live):
    text, page = card(live("import torch\ntorch.full((3, 2), float(rank > 1))"))
    assert re.findall(r"(\[.*\]) returned Tensor \(3, 2\)", text) == ["[0, 1]", "[2, 3]"]
    assert page.count("→ Tensor (3, 2)") == 2
    text, _ = card(live("torch.full((3, 2), 1.5)"))
    assert text.count("\n[0–3] returned Tensor (3, 2)") == 1


def test_only_equal_long_lists_are_grouped(live):
    text, _ = card(live("[*range(100), rank == 3]"))
    assert re.findall(r"(\[.*\]) returned \[0, 1,", text) == ["[0–2]", "[3]"]


def test_table_keeps_dict_order_and_shows_non_numeric_values(live):
    cell = '{"z": 1 / 3 + rank * 1e-9, "best": None, "name": "run", "a": np.float64(0.5)}'
    text, page = card(live(f"import numpy as np\n{cell}"))
    assert [re.split(r"  +", line) for line in text.splitlines()[2:7]] == [
        ["returned", "[0]", "[1]", "[2]", "[3]"],
        ["z", "0.333333333", "0.333333334", "0.333333335", "0.333333336"],
        ["best", *["None"] * 4],
        ["name", *["'run'"] * 4],
        ["a", *["0.5"] * 4],
    ]
    assert "z 0.333333333 0.333333334 0.333333335 0.333333336 best None" in page
    text, _ = card(live('["x", {"z": np.float32(0.1), "a": torch.tensor(0.5)}]'))
    assert "\n[0–3] returned ['x', {'z': 0.1, 'a': tensor(0.5)}]\n" in text


def test_each_result_is_shown_once(live):
    text, page = card(live("rank * 7.25"))
    assert text.count("21.75") == page.count("21.75") == 1


def test_none_results_are_not_shown(live):
    assert "returned" not in "".join(card(live("bound = 5")))
    text, page = card(live("0.5 if rank == 2 else None"))
    assert "returned 2 → 0.5" in page
    assert text.count("[2] returned 0.5") == 1
    assert "None" not in text + page


def test_trailing_semicolon_hides_the_result(live):
    assert "returned" not in "".join(card(live("rank + 1;  # not shown")))
    assert "returned" in "".join(card(live('";"')))


def test_displayed_results_are_not_shown_again(live):
    shown = live(f"{DRAWN}Drawn(rank)")
    assert "returned" not in "".join(card(shown))
    assert "not drawn" not in "".join(card(shown))
    assert "drawn by 3" in str([message["content"] for message in shown.messages])


def test_arrays_are_shown_by_shape_and_long_texts_truncated(live):
    text, _ = card(live('import numpy as np\n[np.ones((512, 512), "float32"), "s" * 100_000]'))
    (line,) = (line for line in text.splitlines() if line.startswith("[0–3] returned "))
    assert "ndarray (512, 512) float32" in line
    assert len(line) < 120


def test_objects_differing_only_in_address_are_grouped(live):
    text, _ = card(live("class Thing: pass\nhere = [Thing() for _ in range(rank + 1)]\nhere[-1]"))
    assert "\n[0–3] returned <__main__.Thing object>\n" in text


@pytest.mark.parametrize("body", ["raise ValueError('no')", "import time; time.sleep(600)"])
def test_failing_or_endless_repr_does_not_harm_the_run(live, body):
    text, _ = card(live(f"class Odd:\n    def __repr__(self): {body}\nOdd()"))
    assert text.startswith("✓ 4 ranks finished")
    assert re.search(r"\[0–3\] returned <Odd", text)


def test_failed_run_shows_results_of_the_other_ranks(kernel, live):
    cell = "if rank == 1: raise KeyError('x')\nelse: value = 3\nvalue"
    shown = kernel.run(f"%%xla\n{cell}")
    assert shown.ename == "RunFailed"
    assert "[0, 2, 3] returned 3\n" in card(shown)[0]


def test_run_and_reopened_run_show_and_have_the_results(notebook):
    notebook.ok("%%xla_spawn -n 2 -o kept_run\ndef some(rank):\n    return {'loss': rank / 2}")
    again = notebook.ok("xla_nb.open_run(kept_run.name)").data
    shown = notebook.ok("kept_run").data
    for data in (shown, again):
        assert "returned  [0]  [1]\nloss      0.0  0.5\n" in data["text/plain"]
        assert "returned 0 1 loss 0.0 0.5" in words(data["text/html"])
    printed = notebook.ok("print(kept_run)").stdout
    assert printed.endswith("; [0] returned {'loss': 0.0}; [1] returned {'loss': 0.5}>\n")
    assert notebook.value("kept_run.results") == "{0: {'loss': 0.0}, 1: {'loss': 0.5}}"


def test_panel_saves_results_in_the_cell(notebook):
    text, page = card(notebook.ok("%%xla_spawn -n 2 --view panel\ndef f(rank):\n    return 'x'"))
    assert "\n[0, 1] returned 'x'\n" in text
    assert "returned 0, 1 → 'x'" in page


def test_launches_in_ordinary_cells_show_results(notebook):
    text, _ = card(notebook.ok("xla_nb.spawn(lambda rank: rank + 7, n=2)"))
    assert "[0] returned 7\n[1] returned 8\n" in text


@pytest.mark.slow
def test_script_prints_results_before_the_last_line(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    last = next(n for n, line in enumerate(lines) if line.startswith("2 ranks finished"))
    assert lines[last - 3 : last] == ["returned  [0, 1]", "loss      0.25", "steps     375"]
    assert lines[-1].endswith("; [0, 1] returned {'loss': 0.25, 'steps': 375}>")


NO_SYNC = """\
%%xla_spawn -n 2 -o without_sync
import torch, torch_xla, xla_nb
def train(rank):
    layer = torch.nn.Linear(8, 8).to(torch_xla.device())
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    for step in range(20):
        optimizer.zero_grad()
        loss = layer(torch.ones(4, 8, device=torch_xla.device())).pow(2).mean()
        loss.backward()
        optimizer.step()
        xla_nb.report(loss=loss)
    return loss.item() > 0
"""


def test_all_figures_of_a_loop_without_sync_are_recorded(notebook):
    shown = notebook.ok(NO_SYNC)
    assert "returned True" in card(shown)[0]
    losses = notebook.value("[len(without_sync.history['loss'][rank]) for rank in (0, 1)]")
    assert losses == "[20, 20]"
    assert "handlers running" not in shown.stdout + shown.stderr + card(shown)[0]

"""Watched variables of live ranks: drift is the headline of the cell that caused it; differences
that are or may be intended are no warning."""

import re

import pytest

MODEL = """\
%%xla
import torch
model = torch.nn.Linear(4, 4)
for held in model.parameters():
    torch.nn.init.constant_(held, 1.0)
shard = torch.full((3,), float(rank))
half = rank % 2
first = rank == 0
"""
BREAKS = "if rank == 2:\n    torch.nn.init.constant_(model.weight, 2.0)"
AMBER, RED = "#9a6700", "#cf222e"


@pytest.fixture(scope="module")
def live(kernel):
    kernel.ok("%xla_start -n 4")
    kernel.ok(MODEL)
    yield kernel
    kernel.ok("%xla_shutdown")


@pytest.fixture
def drifts(live):
    """The cell in which a watched model drifts, and the expected sentence."""
    live.ok("%xla_vars --watch model shard half")
    assert live.ok("%%xla\nsame = 1").data["text/plain"].startswith("✓ 4 ranks finished")
    shown = live.ok(f"%%xla --view text -o drifted\n{BREAKS}")
    yield (
        shown,
        f"`model` has differed between ranks since Cell In[{shown.number}]: "
        "rank 2 (weight: norm 4 (ranks 0, 1, 3), 8 (rank 2))",
    )
    live.ok("%%xla\ntorch.nn.init.constant_(model.weight, 1.0)")
    live.ok("%xla_vars --unwatch")


def test_drift_is_the_amber_title_of_its_live_saved_and_reopened_cell(live, drifts):
    shown, said = drifts
    again = live.ok("import xla_nb\nxla_nb.open_run(drifted.name)")
    for data in (shown.data, live.ok("drifted").data, again.data):
        first = data["text/plain"].splitlines()[0]
        assert first.startswith("! 4 ranks finished in ")
        assert said in first
        head = data["text/html"][: data["text/html"].index("has differed between ranks")]
        assert f"background:{AMBER}" in head
    assert said not in shown.stdout + shown.stderr  # shown once only


def test_drift_is_the_title_of_live_ranks_until_the_next_cell(live, drifts):
    shown, said = drifts
    data = live.ok("%xla_ranks").data
    assert data["text/plain"].startswith(f"● {said}")
    assert f"note: {said}" not in data["text/plain"]
    head, _, rest = data["text/html"].partition("finished; ")
    row = head[head.rindex("<tr") :]
    assert f"Cell In[{shown.number}]" in row
    assert f"background:{AMBER}" in row
    assert "has differed between ranks since" in rest.partition("</tr>")[0]
    live.ok("%%xla\nother = 1")
    again = live.ok("%xla_ranks").data
    assert again["text/plain"].startswith("○ 4 live ranks, idle")
    assert "has differed between ranks since" in again["text/html"].partition("finished; ")[2]


def test_drift_is_reported_for_background_cells_and_without_a_view(live):
    live.ok("%%xla\na = b = 1")
    live.ok("%xla_vars --watch a b")
    live.ok("%%xla --bg --view none -o behind\na = rank // 3")
    data = live.ok("behind.wait()").data
    assert "`a` has differed between ranks since Cell In[" in data["text/plain"].splitlines()[0]
    shown = live.ok("%%xla --view none\nb = rank // 3")
    said = f"`b` has differed between ranks since Cell In[{shown.number}]: rank 3 (1 (rank 3)"
    assert "`b` has differed between ranks since" in shown.stdout, said
    live.ok("%xla_vars --unwatch")


@pytest.mark.parametrize(
    ("then", "how"),
    [
        ("if rank == 0: 1 / 0", "✗ Rank 0 failed at "),
        ("import time\ntime.sleep(60)", "■ Timed out after 3 s"),
    ],
)
def test_drift_is_listed_for_failed_and_stopped_cells(live, then, how):
    live.ok("%%xla\nc = 0")
    live.ok("%xla_vars --watch c")
    shown = live.run(f"%%xla --timeout 3s --grace 1s -o ended\nc = rank // 3\n{then}")
    said = f"c has differed between ranks since Cell In[{shown.number}]: "
    assert said.replace("c ", "`c` ", 1) in live.ok("ended").data["text/plain"].splitlines()[0]
    (listed,) = (one for one in cells(live.ok("%xla_ranks").data["text/html"]) if said in one)
    assert how in listed
    live.ok("%xla_vars --unwatch")


def cells(html):
    """The text of each row in the list of cells."""
    rows = re.findall("<tr.*?</tr>", html, re.DOTALL)
    return [re.sub("<[^>]*>", "", one) for one in rows]


def test_inspecting_variables_does_not_affect_repeated_calls(live):
    live.ok("def called(a=0): return a\ncaller = xla_nb.ranks()\ncaller.call(called, 5)")
    live.ok("%xla_vars model")
    assert live.value("caller.call(called).results[3]") == "0"


def test_values_that_were_never_equal_are_only_noted(live):
    live.ok("%xla_vars --watch own")
    shown = live.ok("%%xla\nown = rank")
    title, note, *_ = shown.data["text/plain"].splitlines()
    assert title.startswith("✓ 4 ranks finished")
    assert note.startswith("note: `own` differs between ranks after Cell In[")
    assert live.ok("%%xla\nown += 1").data["text/plain"].count("`own`") == 0
    live.ok("%xla_vars --unwatch")


def test_equal_values_that_become_all_different_have_drifted(live):
    live.ok("%%xla\nonce = 0")
    live.ok("%xla_vars --watch once")
    shown = live.ok("%%xla\nonce = rank")
    assert (
        f"`once` has differed between ranks since Cell In[{shown.number}]"
        in shown.data["text/plain"]
    )
    live.ok("%xla_vars --unwatch")


def test_only_a_rank_that_differs_from_the_majority_is_red(live):
    data = live.ok("%xla_vars model shard half first").data
    rows = {name: row(data["text/html"], name) for name in ("model", "shard", "half", "first")}
    assert "equal" in rows["model"]
    assert "differs by rank" in rows["shard"]
    assert "differs by rank" in rows["half"]
    assert "rank 0 differs" in rows["first"]
    assert [name for name, told in rows.items() if RED in told] == ["first"]


def row(html, name):
    sign = "(?:<[^>]*>|[≠◔◌?= ])*"
    return re.search(rf"<tr[^>]*><td[^>]*>{sign}{name}</bdi>.*?</tr>", html, re.DOTALL)[0]


def test_shards_of_an_fsdp_model_do_not_drift(live):
    live.ok(
        "%%xla\nfrom torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as FSDP\n"
        "torch.manual_seed(0)\nnet = torch.nn.Linear(64, 64).to(device)"
    )
    live.ok("%xla_vars --watch net")
    shown = live.ok("%%xla\nimport torch_xla\nnet = FSDP(net)\ntorch_xla.sync()")
    assert shown.data["text/plain"].startswith("✓ 4 ranks finished")
    assert RED not in live.ok("%xla_vars net").data["text/html"]
    live.ok("%xla_vars --unwatch")


def test_drift_of_pending_values_is_not_attributed_to_the_cell(live):
    live.ok("%%xla\nsum_ = torch.zeros(2, device=device)\ntorch_xla.sync()")
    live.ok("%xla_vars --watch sum_")
    live.ok("%%xla\nsum_ += 1 + rank")
    shown = live.ok("%%xla\ntorch_xla.sync()")
    assert (
        f"`sum_` differs between ranks after Cell In[{shown.number}]: " in shown.data["text/plain"]
    )
    live.ok("%xla_vars --unwatch")


def test_watched_names_accumulate_until_unwatched(live):
    live.ok("%%xla\nloss = weight = bias = 1")
    watched = [
        live.ok(f"%xla_vars {words}").stdout
        for words in ("--watch loss", "--watch weight loss bias", "--watch", "--unwatch weight")
    ]
    assert watched == [
        "Compared after each cell: `loss`.\n",
        "Compared after each cell: `loss`, `weight` and `bias`.\n",
        "Compared after each cell: `loss`, `weight` and `bias`.\n",
        "Compared after each cell: `loss` and `bias`.\n",
    ]
    shown = live.ok("%%xla\nloss = weight = bias = rank // 3").data["text/plain"]
    since = "has differed between ranks since"
    assert [name for name in ("loss", "weight", "bias") if f"`{name}` {since}" in shown] == [
        "loss",
        "bias",
    ]
    assert live.ok("%xla_vars --unwatch").stdout == "Compared after each cell: none.\n"
    live.ok("%%xla\nloss = bias = 1")
    assert since not in live.ok("%%xla\nloss = bias = rank // 3").data["text/plain"]


def test_unknown_and_already_different_names_are_reported(live):
    assert "No rank has `modle`." in live.ok("%xla_vars --watch modle").stdout
    live.ok("%%xla\nlists = [1, rank // 3]")
    said = "`lists` already differs between ranks: rank 3 (different elements)\n"
    assert live.ok("%xla_vars --watch lists").stdout.endswith(said)
    assert "not watched: model" in live.run("%xla_vars --unwatch model").error
    assert "not allowed with" in live.run("%xla_vars --watch --unwatch modle").error
    live.ok("%xla_vars --unwatch")

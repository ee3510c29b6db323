"""A cell shows each dead or failed rank once, briefly, with its last known state."""

import html
import re
import subprocess
import sys
import textwrap

import pytest

KILLED = """\
%%xla_spawn -n 3 --view panel
import os, signal, time, torch, torch_xla, torch_xla.core.xla_model as xm
def train(rank):
    x = torch.ones(4, device=torch_xla.device())
    torch_xla.sync()
    time.sleep(0.6)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    for _ in range(100):
        xm.all_reduce("sum", [x])
        torch_xla.sync()
"""
MESSAGE = "the shards of rank 1 have another length than those of the others; write them again"
FAILS = f"""\
message = "{MESSAGE[:20]}" + "{MESSAGE[20:]}"
def fail(rank):
    raise ValueError(message)
"""


def visible_text(page):
    """The text visible without opening folds; one line per table row."""
    page = re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)
    while (closed := re.search(r"<details(?! open)[^>]*><summary", page)) is not None:
        page = page[: closed.start()] + unfolded(page[closed.start() :])
    return html.unescape(re.sub(r"<[^>]*>", "", page.replace("</tr>", "\n")))


def unfolded(page):
    """The page with the fold at its start replaced by its summary."""
    depth = 0
    for tag in re.finditer(r"<(/?)details", page):
        depth += -1 if tag[1] else 1
        if depth == 0:
            summary = re.search(r"<summary[^>]*>(.*?)</summary>", page, re.DOTALL)
            return f"{summary[1]}\n{page[tag.end() + 1 :]}"
    raise AssertionError("a fold without an end")


def all_text(page):
    return html.unescape(re.sub(r"<[^>]*>", "", page.replace("</tr>", "\n")))


def test_killed_rank_keeps_its_last_line_and_memory(notebook):
    page = notebook.run(KILLED).page
    (row,) = [line for line in all_text(page).splitlines() if "† died" in line]
    assert re.search(r"line [67]", row)
    assert "killed by SIGKILL, last seen there" in row
    assert re.search(r"\d+ MiB", row)


def test_secondary_errors_are_folded_and_summarized(notebook):
    shown = notebook.run(KILLED)
    told = visible_text(shown.page)
    assert "ranks 0, 2 failed because of it" in told
    assert "RankLost" not in told
    assert "Traceback" not in told
    assert all_text(shown.page).count("RankLost") == 1


def test_error_is_shown_once_in_a_cell_with_a_panel(notebook):
    shown = notebook.run(f"%%xla_spawn -n 2 --view panel\n{FAILS}")
    assert all_text(shown.page).count(MESSAGE) == 1
    assert 'File "Cell In[' in visible_text(shown.page)  # the traceback is not folded
    assert (shown.status, shown.ename) == ("error", "RunFailed")
    assert shown.below == "RunFailed: the run above shows why."


def test_caught_exception_has_the_full_message(notebook):
    notebook.ok(FAILS)
    caught = notebook.ok(
        "import xla_nb\n"
        "try:\n    xla_nb.spawn(fail, n=2, view='panel')\n"
        "except xla_nb.RunFailed as error:\n    seen = error\n    print(error)"
    )
    assert MESSAGE in caught.stdout
    assert MESSAGE in notebook.run("raise seen").below  # this cell shows no run


def test_cell_without_a_view_raises_the_full_message(notebook):
    shown = notebook.run(f"%%xla_spawn -n 2 --view none\n{FAILS}")
    assert shown.below.count(MESSAGE) == 1
    assert 'File "Cell In[' in shown.below


def kept_text(shown):
    """All text that the cell keeps; of each display its last update."""
    kept = {}
    for number, message in enumerate(shown.messages):
        content = message["content"]
        if "data" in content:
            name = content.get("transient", {}).get("display_id", number)
            kept[name] = content["data"].get("text/plain", "")
    return "\n".join([shown.stdout, shown.stderr, *kept.values(), shown.below])


@pytest.mark.parametrize("view", ["panel", "text"])
@pytest.mark.parametrize("grace", ["0.1", "1.5"])
def test_saved_cell_contains_an_error_once(notebook, view, grace):
    body = f"{FAILS.rstrip()} if rank == 1 else time.sleep(60)".replace("raise ", "wrong = ")
    cell = f"import time\n{body}\n    raise wrong"
    shown = notebook.run(f"%%xla_spawn -n 2 --view {view} --grace {grace}\n{cell}")
    assert kept_text(shown).count(MESSAGE) == 1
    assert shown.below == "RunFailed: the run above shows why."


@pytest.mark.parametrize("view", ["panel", "text"])
def test_run_refused_before_its_ranks_start_shows_the_reason_once(notebook, view):
    raises = f"raise ValueError('{MESSAGE[:20]}' + '{MESSAGE[20:]}')"
    notebook.ok(f"class Shards:\n    n = 1\n    def __setstate__(self, state): {raises}")
    notebook.ok("shards = Shards(); shards.n = 2")
    shown = notebook.run(f"%%xla_spawn -n 2 --view {view}\ndef f(rank): return shards")
    assert kept_text(shown).count(MESSAGE) == 1
    assert 'File "Cell In[' in shown.below
    assert shown.below.endswith("\nRunFailed: no rank was started.")


STOPPED = {
    "--timeout 0.5": "Timed out after 0.5 s",
    "--stop-on-nan": "Stopped by --stop-on-nan; loss became NaN",
}


@pytest.mark.parametrize("option", STOPPED)
@pytest.mark.parametrize("view", ["panel", "text"])
def test_stopped_run_raises_a_short_error(notebook, option, view):
    body = "xla_nb.report(loss=float('nan') if 'nan' in option else 1.0); time.sleep(60)"
    cell = f"import time, xla_nb\noption = {option!r}\ndef f(rank):\n    {body}"
    shown = notebook.run(f"%%xla_spawn -n 2 --view {view} {option}\n{cell}")
    assert kept_text(shown).count(STOPPED[option]) == 1
    assert shown.below == "RunFailed: the run was stopped."


@pytest.mark.slow
def test_script_prints_an_error_once(tmp_path):
    script = tmp_path / "fails.py"
    launch = "import xla_nb\ntry: xla_nb.spawn(fail, n=2)\nexcept xla_nb.RunFailed: pass\n"
    script.write_text(f"{FAILS}if __name__ == '__main__':\n{textwrap.indent(launch, '    ')}")
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.stdout + done.stderr).count(MESSAGE) == 1
    assert "2 ranks failed · " in done.stdout


def test_long_error_is_wrapped_between_words(notebook):
    shown = notebook.run("opened = open('/etc/hostname')\nimport xla_nb\nxla_nb.spawn(opened.read)")
    (raised,) = [one["content"] for one in shown.messages if one["msg_type"] == "error"]
    lines = raised["traceback"]
    assert len(lines) > 1
    assert all(len(line) <= 81 for line in lines)
    assert "".join(lines) == f"{raised['ename']}: {raised['evalue']}"

"""What a cell shows of a rank that died or failed: once, in short, and what is known of it."""

import html
import re

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


def read(page):
    """What somebody reads who opens no fold, a row of a table in a line."""
    page = re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)
    while (closed := re.search(r"<details(?! open)[^>]*><summary", page)) is not None:
        page = page[: closed.start()] + unfolded(page[closed.start() :])
    return html.unescape(re.sub(r"<[^>]*>", "", page.replace("</tr>", "\n")))


def unfolded(page):
    """The page without the fold at its start, but for its summary."""
    depth = 0
    for tag in re.finditer(r"<(/?)details", page):
        depth += -1 if tag[1] else 1
        if depth == 0:
            summary = re.search(r"<summary[^>]*>(.*?)</summary>", page, re.DOTALL)
            return f"{summary[1]}\n{page[tag.end() + 1 :]}"
    raise AssertionError("a fold without an end")


def texts(page):
    return html.unescape(re.sub(r"<[^>]*>", "", page.replace("</tr>", "\n")))


def test_of_a_killed_rank_the_last_line_and_memory_stay(notebook):
    page = notebook.run(KILLED).page
    (row,) = [line for line in texts(page).splitlines() if "† died" in line]
    assert re.search(r"Cell In\[\d+\], line [67]", row)
    assert "killed by SIGKILL, last seen there" in row
    assert re.search(r"\d+ MiB", row)


def test_errors_that_only_followed_are_folded_and_told_in_short(notebook):
    shown = notebook.run(KILLED)
    told = read(shown.page)
    assert "ranks 0, 2 failed because of it" in told
    assert "RankLost" not in told
    assert "Traceback" not in told
    assert texts(shown.page).count("RankLost") == 1


def test_an_error_is_told_once_in_a_cell_with_a_panel(notebook):
    shown = notebook.run(f"%%xla_spawn -n 2 --view panel\n{FAILS}")
    assert texts(shown.page).count(MESSAGE) == 1
    assert 'File "Cell In[' in read(shown.page)  # where it was raised is not folded
    assert (shown.status, shown.ename) == ("error", "RunFailed")
    assert shown.error == "RunFailed: the run above shows why."


def test_whoever_catches_the_exception_has_the_whole_sentence(notebook):
    notebook.ok(FAILS)
    caught = notebook.ok(
        "import xla_nb\n"
        "try:\n    xla_nb.spawn(fail, n=2, view='panel')\n"
        "except xla_nb.RunFailed as error:\n    seen = error\n    print(error)"
    )
    assert MESSAGE in caught.stdout
    assert MESSAGE in notebook.run("raise seen").error  # this cell shows no run


def test_a_cell_without_a_panel_raises_the_whole_sentence(notebook):
    for view in ("text", "none"):
        shown = notebook.run(f"%%xla_spawn -n 2 --view {view}\n{FAILS}")
        assert MESSAGE in shown.error


def test_a_long_error_is_in_lines_that_end_between_words(notebook):
    shown = notebook.run("opened = open('/etc/hostname')\nimport xla_nb\nxla_nb.spawn(opened.read)")
    (raised,) = [one["content"] for one in shown.messages if one["msg_type"] == "error"]
    lines = raised["traceback"]
    assert len(lines) > 1
    assert all(len(line) <= 81 for line in lines)
    assert "".join(lines) == f"{raised['ename']}: {raised['evalue']}"

"""The memory shown for ranks, and the free memory of their host."""

import re

from tests.support.shown import rows, words

HOLDS = """\
import os
def hold(rank):
    global held
    held = bytearray(b"x" * (300 << 20)) if rank == 1 else b""
    resident = int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    print("resident", resident >> 20)
"""


def mebibytes(data):
    """The memory of each rank in its table row, in MiB."""
    titles, *ranks = (row for row in rows(data["text/html"]) if len(row) > 3)
    each = (row[titles.index("memory")].split() for row in ranks)
    return [float(number) * (1024 if unit == "GiB" else 1) for number, unit in each]


def test_memory_shared_by_ranks_is_not_counted_for_each(notebook):
    shown = notebook.ok(f"%%xla_spawn -n 4\n{HOLDS}")
    told = mebibytes(shown.data)
    assert len(told) == 4
    assert 290 < told[1] - min(told) < 310  # the first may end before others share its pages
    resident = sorted(int(line.rpartition(" ")[2]) for line in shown.lines if "resident" in line)
    assert sum(told) < 0.7 * sum(resident)


SEEN = """
import time
def seen(run, flag):
    deadline = time.monotonic() + 60
    while (getattr(run.sample(1), "memory", 0) or 0) < 290 << 20:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    open(flag, "w").close()
"""


def test_memory_used_until_the_function_returned_is_kept(notebook, tmp_path):
    notebook.ok(SEEN)
    flag = str(tmp_path / "seen")
    held = HOLDS.replace("    global held\n", "    import time\n")
    waits = f"    while not os.path.exists({flag!r}): time.sleep(0.05)"
    notebook.ok(f"%%xla_spawn -n 2 -o holding --bg --view none\n{held}{waits}")
    notebook.ok(f"seen(holding, {flag!r}); holding.wait(60)")
    first, holds = mebibytes(notebook.ok("xla_nb.open_run(holding.name)").data)
    assert holds - first > 250


def test_instant_run_shows_memory(notebook):
    shown = notebook.ok("%%xla_spawn -n 2\ndef instant(rank): return rank")
    told = words(shown.data["text/html"])
    assert len(re.findall(r"\b\d+ MiB", told)) in (1, 2), told  # one for both ranks, or one each


def test_free_memory_of_the_host_is_shown_once(notebook):
    shown = notebook.ok("%%xla_spawn -n 3\ndef instant(rank): return rank").data
    page = words(shown["text/html"])
    assert len(re.findall(r"host's free memory [\d.]+ [MG]iB", page)) == 1


def test_failed_first_live_cell_counts_only_its_share_of_pages(notebook):
    notebook.ok("%xla_start -n 4")
    shown = notebook.run(
        "%%xla\nlines = [line.split() for line in open('/proc/self/smaps_rollup')]\n"
        "print('share', next(int(line[1]) for line in lines if line[0] == 'Pss:') >> 10)\n1 / 0"
    )
    notebook.ok("%xla_shutdown")
    shares = [int(line.rpartition(" ")[2]) for line in shown.lines if "share" in line]
    told = re.findall(r"\b(\d+) MiB", words(shown.data["text/html"]))
    assert told
    assert max(map(float, told)) < max(shares) + 50

"""The line that shows a run's progress."""

APART = """\
%%xla_spawn -n 4 --bg --view none -o apart
import pathlib, time, xla_nb
def train(rank, folder):
    for epoch in xla_nb.progress(range(30), label="epoch"):
        if epoch == 6 + rank:
            print(f"at {epoch}")
            while not pathlib.Path(folder, "go").exists():
                time.sleep(0.01)
"""
BEFORE = """\
%%xla_spawn -n 3 --bg --view none -o before
import pathlib, time, xla_nb
def train(rank, folder):
    while rank == 2 and not pathlib.Path(folder, "go").exists():
        time.sleep(0.01)
    for step in xla_nb.progress(range(40), label="step"):
        while step == 29 and not pathlib.Path(folder, "go").exists():
            time.sleep(0.01)
"""
SHOWN = """\
import pathlib, time
deadline = time.monotonic() + 60
while True:
    shown = RUN._repr_mimebundle_()["text/plain"]
    if all(words in shown for words in WORDS) or time.monotonic() > deadline:
        break
    time.sleep(0.05)
print(shown)
"""


def shown(notebook, tmp_path, cell, run, *words):
    """The text of a run in progress, once it contains these words."""
    notebook.ok(cell.replace(f"-o {run}", f'--args "({str(tmp_path)!r},)" -o {run}'))
    text = notebook.ok(SHOWN.replace("RUN", run).replace("WORDS", repr(words))).stdout
    (tmp_path / "go").touch()
    notebook.ok(f"{run}.wait()")
    return text


def test_progress_has_the_same_format_when_ranks_are_far_apart(notebook, tmp_path):
    text = shown(notebook, tmp_path, APART, "apart", "% · 6 of 30", "at 9")
    assert "\nepoch: 20 % · 6 of 30" in text


RETURNED = """\
%%xla_spawn -n 3 --bg --view none -o returned
import pathlib, time, xla_nb
def train(rank, folder):
    for step in xla_nb.progress(range(40), label="step"):
        if step == 10 and rank == 1: return
        while step == 29 and not pathlib.Path(folder, "go").exists():
            time.sleep(0.01)
"""


def test_progress_excludes_returned_ranks(notebook, tmp_path):
    text = shown(notebook, tmp_path, RETURNED, "returned", "29 of 40", "finished")
    assert "\nstep: 72 % · 29 of 40" in text


def test_progress_names_its_ranks_if_others_have_not_begun(notebook, tmp_path):
    text = shown(notebook, tmp_path, BEFORE, "before", " 29 of 40 on ranks 0, 1")
    assert "\nstep: 72 % · at least 29 of 40 on ranks 0, 1" in text

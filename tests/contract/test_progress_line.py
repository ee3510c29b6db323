"""The line that says how far a run has come."""

APART = """\
%%xla_spawn -n 4 --bg --view none -o apart
import pathlib, time, xla_nb
def train(rank, folder):
    for epoch in xla_nb.progress(range(30), label="epoch"):
        if epoch == 6 + rank:
            pathlib.Path(folder, str(rank)).touch()
            while not pathlib.Path(folder, "go").exists():
                time.sleep(0.01)
"""
SHOWN = """\
import pathlib, time
deadline = time.monotonic() + 60
while True:
    shown = apart._repr_mimebundle_()["text/plain"]
    there = [pathlib.Path("FOLDER", str(rank)).exists() for rank in range(4)]
    if (all(there) and " 6 of 30" in shown and " 9 of 30" in shown) or time.monotonic() > deadline:
        break
    time.sleep(0.05)
print(shown)
"""


def test_the_words_of_a_runs_progress_are_the_same_however_far_ranks_are_apart(notebook, tmp_path):
    notebook.ok(APART.replace("-o apart", f'--args "({str(tmp_path)!r},)" -o apart'))
    shown = notebook.ok(SHOWN.replace("FOLDER", str(tmp_path))).stdout
    (tmp_path / "go").touch()
    notebook.ok("apart.wait()")
    assert "\nepoch: 20 % · 6 of 30" in shown
    assert "slowest" not in shown

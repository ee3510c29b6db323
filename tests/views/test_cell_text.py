"""Outputs of notebooks executed without a page, by nbclient, papermill or nbconvert."""

import nbformat
import pytest
from nbclient import NotebookClient

from tests.support.kernel import unfolded

LOOP = """\
%%xla_spawn -n 4
import warnings, tqdm, xla_nb
def train(rank):
    warnings.warn("it is old")
    for step in tqdm.tqdm(range(50)):
        xla_nb.report(loss=1 / (step + 1 + rank))
    print("done")
"""
FAILS = """\
%%xla_spawn -n 2
def fails(rank):
    print("begun", rank)
    if rank:
        raise ValueError("boom")
"""
CELLS = {
    "load": "%load_ext xla_nb\nimport xla_nb\ndef work(rank): print('works')",
    "first": "print('before')\nxla_nb.spawn(work, n=2)",
    "loop": LOOP,
    "fails": FAILS,
    "hidden": "%%xla_spawn -n 1 --view none -o hidden\ndef f(rank): print('behind')",
    "shown": "hidden",
    "again": "import xla_nb; xla_nb.open_run(hidden.name)",
}


@pytest.fixture(scope="module")
def told():
    """All messages from the kernel of the executed notebook."""
    return []


@pytest.fixture(scope="module")
def executed(told, tmp_path_factory):
    """The outputs of each cell of an executed notebook."""
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS.values()]
    spec = {"kernelspec": {"name": "python3", "display_name": "", "language": "python"}}
    whole = nbformat.v4.new_notebook(cells=cells, metadata=spec)
    folder = {"metadata": {"path": str(tmp_path_factory.mktemp("notebook"))}}
    client = NotebookClient(whole, timeout=180, allow_errors=True, resources=folder)
    take = client.process_message

    def heard(message, *rest):
        told.append(message["content"])
        return take(message, *rest)

    client.process_message = heard
    client.execute()
    return dict(zip(CELLS, (cell.outputs for cell in whole.cells), strict=True))


def printed(outputs, name):
    return "".join(one.text for one in outputs if one.output_type == "stream" and one.name == name)


def picture(output):
    """The HTML and text of a run."""
    assert output.output_type in ("display_data", "execute_result")
    return output.data["text/html"], output.data["text/plain"]


def test_import_message_of_first_launch_is_removed(executed, told):
    outputs = executed["first"]
    assert "importing the ranks' packages" in str(told)
    assert "importing" not in str(outputs)
    assert "before" in outputs[0]["text"]
    assert "[0, 1] works" in str(outputs)


def test_last_output_is_the_result_that_a_panel_leaves(executed):
    html, text = picture(executed["loop"][-1])
    assert "4 ranks finished" in html
    assert text.startswith("✓ 4 ranks finished in ")
    assert "loss, last: rank 0 0.02" in text
    assert {f"[{rank}] done" for rank in range(4)} <= set(unfolded(text))
    assert 'alt="Chart. loss' in html


def test_lines_are_printed_live_and_folded_in_the_result(executed):
    lines = unfolded(printed(executed["loop"], "stdout"))
    assert set(lines[-4:]) == {f"[{rank}] done" for rank in range(4)}
    warned = [one for one in unfolded(printed(executed["loop"], "stderr")) if "is old" in one]
    assert {f"[{rank}] Cell In[3]:4: UserWarning: it is old" for rank in range(4)} <= set(warned)
    html, _ = picture(executed["loop"][-1])
    before, fold, after = html.partition(">output</span></summary>")
    assert fold
    assert "done" in after.partition("</details>")[0]
    assert "done" not in before


def test_only_final_state_of_a_bar_is_saved(executed):
    assert "\n".join(unfolded(printed(executed["loop"], "stderr"))).count("50/50") == 4
    assert "\r" not in printed(executed["loop"], "stdout") + printed(executed["loop"], "stderr")


def test_cell_that_returns_its_run_shows_it_once(executed):
    kinds = [one.output_type for one in executed["loop"]]
    drawn = [one for one in executed["loop"] if one.get("data", {}).get("text/html")]
    assert len(drawn) == 1
    assert "execute_result" not in kinds


def test_result_shows_the_error_and_exception_is_one_line(executed):
    *_, shown, error = executed["fails"]
    _, text = picture(shown)
    told = "Rank 1 failed at Cell In[4], line 5: ValueError: boom"
    assert text.startswith(f"✗ {told} · ended after ")
    assert 'raise ValueError("boom")' in text
    assert (error.output_type, error.evalue) == ("error", told)
    assert "boom" not in printed(executed["fails"], "stderr")


@pytest.mark.parametrize("cell", ["hidden", "shown", "again"])
def test_run_as_value_of_a_cell_is_displayed(executed, cell):
    (output,) = executed[cell]
    html, text = picture(output)
    assert "1 rank finished" in html
    assert "[0] behind" in text


def test_background_run_is_shown_once(notebook):
    notebook.ok("%%xla_spawn -n 1 --bg --view text -o later\ndef f(rank): print('a word')")
    shown = notebook.ok("later.wait()")
    pictures = [m for m in shown.messages if m["msg_type"] == "display_data"]
    assert len(pictures) <= 1  # it may have ended during the previous cell
    assert "1 rank finished" in notebook.ok("later").result
    assert "<b" in notebook.value("later._repr_mimebundle_()['text/html']")

"""What live ranks had, once they have ended: said by name, and before any are started."""

import re
from collections.abc import Iterator

import pytest

from tests.support.kernel import Notebook


@pytest.fixture(autouse=True)
def two_ranks(notebook: Notebook) -> Iterator[None]:
    notebook.ok("%xla_config n=2 view=text")
    yield
    notebook.run("%xla_shutdown")
    notebook.ok("%xla_config reset")


def has_no_ranks(notebook: Notebook) -> bool:
    return "There are no live ranks" in notebook.run("%xla_ranks").error


def lost(name: str, number: int) -> str:
    return (
        rf"`{name}` was set on the ranks that ended at \d\d:\d\d \(Cell In\[{number}\]\); "
        r"run that cell again\. Nothing was run on ranks\."
    )


def test_a_cell_after_a_shutdown_names_the_cell_that_set_a_name_and_starts_nothing(
    notebook: Notebook,
) -> None:
    number = notebook.ok("%%xla\ner_weights = [1.0]").number
    notebook.ok("%xla_shutdown")
    shown = notebook.run("%%xla\nprint(er_weights)")
    assert re.search(
        rf"Cell In\[{shown.number}\], line 2: {lost('er_weights', number)}", shown.error
    )
    assert has_no_ranks(notebook)
    notebook.ok("%%xla\ner_weights = [2.0]")
    assert "[0] [2.0]" in notebook.ok("%%xla\nprint(er_weights)").printed


def test_a_function_of_the_notebook_that_reads_it_names_it_too(notebook: Notebook) -> None:
    number = notebook.ok("%%xla\ner_scale = 3").number
    notebook.ok("def er_scaled():\n    return er_scale * 2")
    notebook.ok("%%xla\ner_scaled()")
    notebook.ok("%xla_shutdown")
    assert re.search(lost("er_scale", number), notebook.run("%%xla\ner_scaled()").error)
    assert has_no_ranks(notebook)


def test_ranks_that_were_restarted_or_started_again_name_it_too(notebook: Notebook) -> None:
    number = notebook.ok("%%xla\ner_state = 1").number
    notebook.ok("%xla_restart")
    assert re.search(lost("er_state", number), notebook.run("%%xla\ner_state").error)
    assert "[0] 1" in notebook.ok("%%xla\ner_state = 1\nprint(er_state)").printed
    died = notebook.run("%%xla\nimport os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    assert "SIGKILL" in died.error
    notebook.ok("%xla_start")
    assert re.search(lost("er_state", died.number - 1), notebook.run("%%xla\ner_state").error)


@pytest.mark.parametrize(
    "launch", ["%%xla_spawn\ndef er_use(rank): print(er_lr * rank)", "xla_nb.spawn(er_use)"]
)
def test_a_launch_names_the_ended_ranks_too_and_works_once_the_notebook_has_it(
    notebook: Notebook, launch: str
) -> None:
    number = notebook.ok("import xla_nb\ndef er_use(rank): print(er_lr * rank)").number + 1
    notebook.ok("%%xla\ner_lr = 1.5")
    notebook.ok("%xla_shutdown")
    shown = notebook.run(launch)
    assert re.search(
        r"`er_lr` was set on the ranks that ended at \d\d:\d\d "
        rf"\(Cell In\[{number}\]\); define it in the notebook\. Nothing was run on ranks\.",
        shown.error,
    )
    notebook.ok("er_lr = 2.0")
    assert "[1] 2.0" in notebook.ok(launch).printed
    notebook.ok("del er_lr")


def test_what_the_notebook_has_itself_is_the_notebooks_which_is_told_once(
    notebook: Notebook,
) -> None:
    notebook.ok("er_rate = 0.2")
    number = notebook.ok("%%xla\ner_rate = er_rate / 2").number
    notebook.ok("%xla_shutdown")
    shown = notebook.ok("%%xla\nprint(er_rate)")
    assert "[0] 0.2" in shown.printed
    told = rf"`er_rate` was set on .* \(Cell In\[{number}\]\); using the notebook's value\."
    assert re.search(told, shown.stderr)
    notebook.ok("er_rate = 0.3")
    assert "was set on" not in notebook.ok("%%xla\nprint(er_rate)").stderr


def test_it_does_not_matter_whether_the_line_would_run(notebook: Notebook) -> None:
    number = notebook.ok("%%xla\ner_maybe = 1").number
    notebook.ok("%xla_shutdown")
    shown = notebook.run("%%xla\nif rank > 5:\n    er_maybe\nprint('ran')")
    assert re.search(lost("er_maybe", number), shown.error)
    assert has_no_ranks(notebook)


@pytest.mark.parametrize(
    ("cell", "told"),
    [
        ("x = (", "was never closed"),
        ("print(er_file)", "an open file"),
    ],
)
def test_no_ranks_are_started_for_a_cell_that_cannot_run(
    notebook: Notebook, cell: str, told: str
) -> None:
    notebook.ok("er_file = open('/dev/null')")
    assert told in notebook.run(f"%%xla\n{cell}").error
    assert has_no_ranks(notebook)
    notebook.ok("er_file.close()")

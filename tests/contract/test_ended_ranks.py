"""Variables of ended live ranks are reported by name, before new ranks start."""

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


def test_cell_after_shutdown_names_the_defining_cell_and_starts_no_ranks(
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


def test_lost_variable_read_by_a_notebook_function_is_reported(notebook: Notebook) -> None:
    number = notebook.ok("%%xla\ner_scale = 3").number
    notebook.ok("def er_scaled():\n    return er_scale * 2")
    notebook.ok("%%xla\ner_scaled()")
    notebook.ok("%xla_shutdown")
    assert re.search(lost("er_scale", number), notebook.run("%%xla\ner_scaled()").error)
    assert has_no_ranks(notebook)


def test_restarted_ranks_report_lost_variables(notebook: Notebook) -> None:
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
def test_launch_reports_lost_variable_until_the_notebook_defines_it(
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


def test_notebook_value_replaces_a_lost_variable_with_one_notice(
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


def test_name_that_new_ranks_have_set_again_is_not_reported_as_lost(notebook: Notebook) -> None:
    notebook.ok("import math as er_math\ndef er_use(): return er_math.pi")
    notebook.ok("%%xla\nimport math as er_math")
    notebook.ok("%xla_shutdown")
    notebook.ok("%%xla\nimport math as er_math")
    assert "was set on" not in notebook.ok("%%xla\nprint(er_use())").stderr


def test_lost_variable_is_reported_even_if_its_line_would_not_run(notebook: Notebook) -> None:
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
def test_cell_that_cannot_run_starts_no_ranks(notebook: Notebook, cell: str, told: str) -> None:
    notebook.ok("er_file = open('/dev/null')")
    assert told in notebook.run(f"%%xla\n{cell}").error
    assert has_no_ranks(notebook)
    notebook.ok("er_file.close()")

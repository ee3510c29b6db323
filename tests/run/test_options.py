"""The options of a launch: allowed values, and the same description everywhere."""

import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import xla_nb
from xla_nb import api
from xla_nb.errors import UsageError
from xla_nb.run import options as run_options
from xla_nb.run.options import OPTIONS, SETTINGS, Options

REFERENCE = Path(__file__).parents[2] / "docs" / "reference.md"


def checked(name, value):
    return {**SETTINGS, **OPTIONS}[name].check(name, value)


@pytest.mark.parametrize(
    ("name", "word", "value"),
    [
        ("n", "8", 8),
        ("timeout", "90", 90.0),
        ("timeout", "1.5s", 1.5),
        ("grace", "5m", 300.0),
        ("wait", "2h", 7200.0),
        ("on", "ray://head:10001", "ray://head:10001"),
        ("keep_going", "no", False),
        ("keep_going", "True", True),
        ("view", "text", "text"),
    ],
)
def test_option_text_is_converted_to_its_value(name, word, value):
    assert checked(name, word) == value


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("n", "two", "n must be a whole number of at least 1, not 'two'."),
        ("n", True, "n must be a whole number of at least 1, not True."),
        ("n", 0, "n must be a whole number of at least 1, not 0."),
        ("hosts", 1.5, "hosts must be a whole number of at least 1, not 1.5."),
        ("grace", -1, "Invalid grace -1. Use 90, 5m or 2h."),
        ("timeout", float("nan"), "Invalid timeout nan. Use 90, 5m or 2h."),
        ("timeout", "tomorrow", "Invalid timeout 'tomorrow'. Use 90, 5m or 2h."),
        ("runtime", "jax", "Unknown runtime 'jax'. Choose xla, spmd or torchax."),
        ("view", "pannel", "Unknown view 'pannel'. Choose panel, text or none."),
        ("on", "ray:", "Unknown on 'ray:'. Choose local, ray or ray://HOST:PORT."),
        ("on", "ray://", "Unknown on 'ray://'. Choose local, ray or ray://HOST:PORT."),
        ("keep_going", 2, "keep_going must be true or false, not 2."),
        ("keep_going", "maybe", "keep_going must be true or false, not 'maybe'."),
        ("timeout", 10**400, f"Invalid timeout 1{'0' * 198}…. Use 90, 5m or 2h."),
        ("timeout", "9" * 400, f"Invalid timeout '{'9' * 198}…. Use 90, 5m or 2h."),
        ("env", [1], "env must be a dict of names and values, not a value of type list."),
        ("env", {"A": 1}, "env: the value of 'A' must be a string, not a value of type int."),
        ("env", {"A=B": "1"}, "env: 'A=B' is not a valid variable name."),
        ("env", {"A": "1\0"}, "env: the value of 'A' has a null character."),
        (
            "n",
            "9" * 5000,
            f"n must be a whole number of at least 1, not '{'9' * 198}….",
        ),
        ("env", "A=1", "env must be a dict of names and values, not a value of type str."),
    ],
)
def test_invalid_value_is_rejected_with_the_allowed_ones(name, value, message):
    with pytest.raises(UsageError) as refusal:
        checked(name, value)
    assert str(refusal.value) == message


def test_invalid_value_without_a_working_repr_is_rejected():
    class Rude:
        def __repr__(self):
            raise ZeroDivisionError

    with pytest.raises(UsageError, match="not <its repr\\(\\) raised ZeroDivisionError>"):
        checked("n", Rude())


@pytest.mark.parametrize("name", ["__builtins__", "__name__", "__x__"])
def test_run_variable_may_not_be_a_reserved_python_name(name):
    with pytest.raises(UsageError, match=f"^-o {name}: that name is reserved by Python"):
        run_options.variable("-o", name)


def test_run_variable_is_normalized_like_a_python_identifier():
    assert run_options.variable("-o", "\ufb01ne") == "fine"


@pytest.mark.parametrize("word", ["2", "0", "-3", "many", "1.5", ""])
def test_count_is_a_whole_number(word):
    if word == "2":
        assert checked("n", word) == 2
    else:
        with pytest.raises(UsageError, match=re.escape(f"not {word!r}.")):
            checked("n", word)


def test_numpy_integer_is_a_count():
    assert checked("n", np.int64(2)) == 2


def test_arguments_given_as_a_list_become_a_tuple():
    assert run_options.arguments([1, 2]) == (1, 2)


def test_missing_options_use_settings_then_defaults():
    assert run_options.options(dict.fromkeys(OPTIONS), run_options.DEFAULTS) == Options()
    made = run_options.options({"n": None, "grace": 1}, {"n": 3, "grace": 7.0, "dropin": False})
    assert made == Options(n=3, grace=1.0)


def test_spawn_accepts_and_documents_every_option():
    signature = inspect.signature(xla_nb.spawn).parameters
    arguments = {name: signature[name].default for name in OPTIONS}
    assert [*signature] == ["fn", "args", *sorted(OPTIONS, key=[*signature].index)]
    assert arguments == dict.fromkeys(OPTIONS)  # None: the setting, or the default
    lines = xla_nb.spawn.__doc__.splitlines()
    assert [line.split()[0] for line in lines if "   " in line.strip()] == [*OPTIONS]


def test_reference_matches_the_declared_options():
    reference = REFERENCE.read_text()
    heading = next(line for line in reference.splitlines() if line.startswith("## `xla_nb.spawn("))
    for name in OPTIONS:
        default = inspect.signature(xla_nb.spawn).parameters[name].default
        assert f"{name}={default!r}" in heading, name
    plain = re.sub(r" \(\[guide\]\([^)]*\)\)|`", "", reference)
    for option in OPTIONS.values():
        assert f"| {option.usage} | {option.meaning} | {option.without} |" in plain


@pytest.mark.parametrize(
    "wrong",
    [
        {"args": 5},
        {"n": "two"},
        {"view": "pannel"},
        {"env": {"A": 1}},
        {"grace": -1},
        {"timeout": "soon"},
        {"on": "nowhere"},
        {"runtime": "jax"},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_spawn_rejects_invalid_arguments_before_launching(monkeypatch, wrong):
    monkeypatch.setattr(api, "launch", lambda *_: pytest.fail("launched"))
    with pytest.raises(UsageError, match=next(iter(wrong))):
        xla_nb.spawn(print, **wrong)

"""Inspecting objects whose methods raise, exit or never return."""

import threading

import pytest

from xla_nb import untrusted
from xla_nb.untrusted import TooLong, message_of, name_of, within, words


def raising(error):
    raise error


@pytest.fixture
def endless():
    """A function that returns only when the test is over."""
    over = threading.Event()
    yield over.wait
    over.set()


def test_within_returns_the_result_of_a_call():
    assert within(60, lambda: 5) == 5


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(0), KeyboardInterrupt()])
def test_within_raises_the_exception_of_a_call(error):
    with pytest.raises(type(error)):
        within(60, lambda: raising(error))


def test_within_gives_up_on_a_call_that_never_returns(endless):
    with pytest.raises(TooLong):
        within(0.01, endless)


def test_a_text_that_cannot_be_computed_is_replaced_by_the_reason(endless):
    assert words(lambda: "text", "str()") == "text"
    assert words(lambda: 5, "str()") == "<its str() is not a string>"
    assert words(lambda: raising(SystemExit()), "str()") == "<its str() raised SystemExit>"
    assert words(endless, "repr()", 0.01) == "<its repr() took longer than 0.01 s>"


def test_a_message_of_a_str_subclass_becomes_a_plain_str():
    class Message(str):
        def __repr__(self):
            return self

    said = message_of(KeyError(Message("Caught KeyError\nline 2")))
    assert (type(said), said) == (str, "Caught KeyError\nline 2")


def test_an_error_raised_by_an_errors_str_is_named():
    class Mute(Exception):
        def __str__(self):
            raise ValueError

    assert message_of(Mute()) == "<its str() raised ValueError>"


def test_the_name_of_a_class_is_found_without_its_metaclass():
    class Meta(type):
        def __getattribute__(cls, name):
            raise ValueError

    class Named(metaclass=Meta):
        pass

    assert name_of(Named).endswith("Named")
    assert untrusted.module_of(Named) == __name__


def test_the_traceback_of_an_error_is_found_without_its_class():
    class Hidden(Exception):
        @property
        def __traceback__(self):
            raise ValueError

    try:
        raise Hidden
    except Hidden as error:
        assert untrusted.trace_of(error) is not None


def test_objects_are_inspected_even_if_no_thread_can_be_started(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert message_of(ValueError("boom")) == "boom"

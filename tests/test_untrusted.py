"""Looking at objects whose own methods raise, exit or never return."""

import threading

import pytest

from xla_nb import untrusted
from xla_nb.untrusted import TooLong, message_of, name_of, within, words


def raising(error):
    raise error


@pytest.fixture
def endless():
    """A call that returns when the test is over."""
    over = threading.Event()
    yield over.wait
    over.set()


def test_what_returns_in_time_is_returned():
    assert within(60, lambda: 5) == 5


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(0), KeyboardInterrupt()])
def test_what_raises_is_raised(error):
    with pytest.raises(type(error)):
        within(60, lambda: raising(error))


def test_what_never_returns_is_given_up(endless):
    with pytest.raises(TooLong):
        within(0.01, endless)


def test_a_text_that_cannot_be_had_is_replaced_by_why(endless):
    assert words(lambda: "text", "str()") == "text"
    assert words(lambda: 5, "str()") == "<its str() is not a string>"
    assert words(lambda: raising(SystemExit()), "str()") == "<its str() raised SystemExit>"
    assert words(endless, "repr()", 0.01) == "<its repr() took longer than 0.01 s>"


def test_a_text_of_a_class_of_its_own_is_text():
    class Message(str):
        def __repr__(self):
            return self

    said = message_of(KeyError(Message("Caught KeyError\nline 2")))
    assert (type(said), said) == (str, "Caught KeyError\nline 2")


def test_an_error_within_an_errors_message_is_named():
    class Mute(Exception):
        def __str__(self):
            raise ValueError

    assert message_of(Mute()) == "<its str() raised ValueError>"


def test_a_class_has_its_name_whatever_its_metaclass_says():
    class Meta(type):
        def __getattribute__(cls, name):
            raise ValueError

    class Named(metaclass=Meta):
        pass

    assert name_of(Named).endswith("Named")
    assert untrusted.module_of(Named) == __name__


def test_an_error_has_its_traceback_whatever_its_class_says():
    class Hidden(Exception):
        @property
        def __traceback__(self):
            raise ValueError

    try:
        raise Hidden
    except Hidden as error:
        assert untrusted.trace_of(error) is not None


def test_without_a_thread_to_be_had_an_object_is_looked_at_all_the_same(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert message_of(ValueError("boom")) == "boom"

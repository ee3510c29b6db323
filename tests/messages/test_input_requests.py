"""An answer reaches only the pipe of the asking process."""

import os
import threading

import pytest

from xla_nb.messages import input_requests
from xla_nb.messages.events import Asked
from xla_nb.messages.input_requests import Pipe, Refused


def asked(pipe, **more):
    return Asked(
        **{"rank": 0, "pid": os.getpid(), "fd": pipe.fd, "ino": pipe.ino, **more}, prompt=""
    )


@pytest.mark.parametrize("text", ["", "Ada", "ü\n☃\ud800", "x" * 300_000])
def test_answer_arrives_complete(text):
    with Pipe() as pipe:
        sender = threading.Thread(target=input_requests.answer, args=(asked(pipe), text))
        sender.start()
        assert pipe.answer() == text
        sender.join()


def test_question_is_open_until_its_asker_continues_and_a_refusal_raises():
    with Pipe() as pipe:
        question = asked(pipe)
        assert input_requests.is_open(question)
        input_requests.answer(question, refusal="nobody is there")
        with pytest.raises(Refused, match="nobody is there"):
            pipe.answer()
    assert not input_requests.is_open(question)
    input_requests.answer(question, "to nobody")


def test_answer_is_not_written_to_another_file_with_the_same_number(tmp_path):
    with Pipe() as pipe, (tmp_path / "other").open("wb") as other:
        input_requests.answer(asked(pipe, fd=other.fileno()), "secret")
        input_requests.answer(asked(pipe, ino=pipe.ino + 1), "secret")
        assert not input_requests.is_open(asked(pipe, ino=pipe.ino + 1))
    assert (tmp_path / "other").read_bytes() == b""

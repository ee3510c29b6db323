"""The way of an answer: into the asker's own pipe, and nowhere else."""

import os
import threading

import pytest

from xla_nb.protocol import questions
from xla_nb.protocol.events import Asked
from xla_nb.protocol.questions import Pipe, Refused


def asked(pipe, **more):
    return Asked(
        **{"rank": 0, "pid": os.getpid(), "fd": pipe.fd, "ino": pipe.ino, **more}, prompt=""
    )


@pytest.mark.parametrize("text", ["", "Ada", "ü\n☃\ud800", "x" * 300_000])
def test_an_answer_arrives_whole(text):
    with Pipe() as pipe:
        sender = threading.Thread(target=questions.answer, args=(asked(pipe), text))
        sender.start()
        assert pipe.answer() == text
        sender.join()


def test_a_refusal_says_why():
    with Pipe() as pipe:
        questions.answer(asked(pipe), refusal="nobody is there")
        with pytest.raises(Refused, match="nobody is there"):
            pipe.answer()


def test_a_question_is_open_until_its_asker_has_gone_on():
    with Pipe() as pipe:
        question = asked(pipe)
        assert questions.is_open(question)
    assert not questions.is_open(question)
    questions.answer(question, "to nobody")


def test_an_answer_goes_into_no_other_file_of_that_number(tmp_path):
    with Pipe() as pipe, (tmp_path / "other").open("wb") as other:
        questions.answer(asked(pipe, fd=other.fileno()), "secret")
        questions.answer(asked(pipe, ino=pipe.ino + 1), "secret")
        assert not questions.is_open(asked(pipe, ino=pipe.ino + 1))
    assert (tmp_path / "other").read_bytes() == b""

"""What ranks had too little of, read from what they said."""

import pytest

from xla_nb.messages import events
from xla_nb.run.sentences import shortage
from xla_nb.run.state import RunState


def state_of(*happened):
    state = RunState()
    for event in (events.JobStarted(pid=1, ranks=2, simulated=True), *happened):
        state.apply(event)
    return state


def failed(message, text=""):
    return events.RankFailed(rank=1, kind="E", message=message, text=text, place="", where="")


def silent(rank):
    return ""


@pytest.mark.parametrize(
    ("message", "limit"),
    [
        ("can't start new thread", "ulimit -u"),
        ("[Errno 24] Too many open files: 'x'", "ulimit -n"),
        ("[Errno 23] Too many open files in system: 'x'", "fs.file-max"),
        ("[Errno 12] Cannot allocate memory", "ulimit -v"),
    ],
)
def test_an_error_that_names_a_call_is_told_with_its_limit(message, limit):
    assert limit in shortage(state_of(failed(message)), silent)


def test_an_error_that_names_its_limit_itself_is_not_told_again():
    message = "Cannot send the result: Too many open files. As many files are open as a process "
    told = shortage(state_of(failed(message)), silent)
    assert shortage(state_of(failed(f"{message}. {told}")), silent) == ""


def test_a_semaphore_that_finds_no_space_is_in_shared_memory():
    full = "[Errno 28] No space left on device"
    where = "    sl = self._semlock = _multiprocessing.SemLock(\n"
    assert "/dev/shm" in shortage(state_of(failed(full, where)), silent)
    assert shortage(state_of(failed(full, "    file.write(x)\n")), silent) == ""


def test_a_rank_that_died_has_said_it_in_its_output():
    said = "env.cc:80] Check failed: Thread tf_pjrt creation via pthread_create() failed."
    died = (
        events.RankStarted(rank=0, local_rank=0, pid=7, device="d"),
        events.ProcessDied(pid=7, status=-6),
    )
    assert "ulimit -u" in shortage(state_of(*died), lambda rank: said if rank == 0 else "")


def test_a_data_loader_whose_worker_finds_no_shared_memory_has_said_it_there():
    said = "ERROR: Unexpected bus error in worker. This might be caused by insufficient "
    ended = failed("DataLoader worker (pid(s) 107) exited unexpectedly")
    sentence = shortage(state_of(ended), lambda rank: f"{said}shared memory (shm).")
    assert "--shm-size" in sentence
    assert shortage(state_of(ended), silent) == ""


def test_the_output_of_a_rank_that_failed_otherwise_says_nothing():
    assert shortage(state_of(failed("boom")), lambda rank: rank * "std::bad_alloc") == ""

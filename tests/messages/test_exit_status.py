"""Exit statuses in words."""

import pytest

from xla_nb.messages.exit_status import cause_in_short, cause_of_death, in_past


@pytest.mark.parametrize(
    ("status", "told", "in_short"),
    [
        (-9, "was killed by SIGKILL (often out of memory; check dmesg)", "killed by SIGKILL"),
        (-15, "was killed by SIGTERM", "killed by SIGTERM"),
        (-11, "crashed with SIGSEGV in native code", "crashed with SIGSEGV"),
        (-6, "crashed with SIGABRT (see the rank's output)", "crashed with SIGABRT"),
        (-7, "crashed with SIGBUS (often because /dev/shm is full)", "crashed with SIGBUS"),
        (-2, "was interrupted (SIGINT)", "interrupted (SIGINT)"),
        (-99, "was killed by signal 99", "killed by signal 99"),
        (3, "exited with status 3 before finishing", "exited with status 3"),
    ],
)
def test_an_exit_status_is_described_in_full_and_in_short(status, told, in_short):
    assert in_past(cause_of_death(status)) == told
    assert cause_in_short(status) == in_short

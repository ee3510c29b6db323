"""A test double for a session's Run, with what a view uses of it."""

import threading

from xla_nb.messages import events
from xla_nb.record.files import Record
from xla_nb.run.recorded import RecordedRun


class Run(RecordedRun):
    """A run with its record at `path`; `looks` is how often `done` is False before it is True."""

    def __init__(self, path, ranks=2, looks=0):
        super().__init__("20260101-000000-abcdef", "Cell In[3]", Record(path), {}.__getitem__)
        self.state.apply(events.JobStarted(host="h", ranks=ranks, simulated=True))
        self.changed, self.urgent = threading.Condition(), threading.Event()
        self.drawn, self.is_followed = threading.Event(), False
        self.stopped = []
        self.looks = looks

    @property
    def elapsed(self):
        return 1.25

    @property
    def done(self):
        self.looks -= 1
        return self.looks < 0

    def stop(self, why, *, same=""):
        self.stopped.append(why)

    def stops_because(self, why):
        self.state.apply(events.StopRequested(why=why))

    def prints(self, rank, written, stream="out"):
        with self.record.log(rank, stream).open("ab") as file:
            file.write(written if isinstance(written, bytes) else written.encode())

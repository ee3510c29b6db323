"""The threads of a process with several devices."""

import contextvars
import decimal
from concurrent.futures import ThreadPoolExecutor

import torch

from xla_nb.runtimes.xla import go_on_from

step = contextvars.ContextVar("step", default=0)


def test_device_thread_inherits_the_main_threads_context():
    def begins():
        with torch.no_grad(), decimal.localcontext():
            step.set(3)
            return contextvars.copy_context(), torch.is_grad_enabled(), decimal.getcontext()

    context, has_grad, decimals = contextvars.copy_context().run(begins)
    with ThreadPoolExecutor(1, initializer=go_on_from, initargs=(context, has_grad)) as pool:
        assert pool.submit(step.get).result() == 3
        assert pool.submit(torch.is_grad_enabled).result() is False
        assert pool.submit(decimal.getcontext).result() is not decimals

"""Work in a thread with a large stack."""

import contextvars

from xla_nb.pickling.pickler import with_a_large_stack

at = contextvars.ContextVar("at", default=0)


def test_it_has_the_values_of_context_variables():
    def work():
        at.set(5)
        return with_a_large_stack(at.get)

    assert contextvars.copy_context().run(work) == 5

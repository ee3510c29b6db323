"""A text view that writes to memory, and its output."""

import io

from xla_nb.views.text import TextView


def written(stream):
    """The output, without the summary at the end."""
    lines = stream.getvalue().splitlines(keepends=True)
    return "".join(line for line in lines if "files in" not in line)


def viewing(run, out=None):
    out, err = out or io.StringIO(), io.StringIO()
    made = TextView(run, out, err)
    made.out, made.err = out, err
    return made

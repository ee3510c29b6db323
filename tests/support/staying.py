"""Cells in a real kernel whose ranks ignore an interrupt, and the messages about them."""

import textwrap

SEEN = "all(s and s.place.endswith(', line {}') for s in map(staying_.sample, range({})))"
#: Each prints `up`, then `stays` after an interrupt. Comments mark the line that is interrupted
#: and the line at which the rank stays.
STAYS = {
    "in finally": """
        import time
        try:
            print('up', flush=True)
            while True: time.sleep(0.01)  # struck
        finally:
            print('stays', flush=True)
            while True: pass  # stays
    """,
    "in an except block that continues": """
        import time
        while True:
            try:
                print('up', flush=True)
                time.sleep(600)  # struck
            except KeyboardInterrupt:
                print('stays', flush=True)
                time.sleep(600)  # stays
    """,
}
#: Holds the GIL, so that nothing in the process can report its line.
SILENT = """
    import ctypes, time
    try:
        print('up', flush=True)
        while True: time.sleep(0.01)  # struck
    finally:
        ctypes.PyDLL(None).sleep(600)  # stays
"""


def line_of(body, mark):
    lines = textwrap.dedent(body).strip().splitlines()
    return next(n for n, line in enumerate(lines, 2) if f"# {mark}" in line)


def until(kernel, condition):
    kernel.ok(f"while not staying_.done and not ({condition}): __import__('time').sleep(0.02)")


def until_all_say(kernel, word, ranks=2):
    until(kernel, f"all({word!r} in staying_.output(r) for r in range({ranks}))")


def interrupted(kernel, line, body, ranks=2):
    """Interrupt a cell when all its ranks are up, and return its label, such as `Cell In[3]`."""
    cell = f"{line} --view none --bg -o staying_\n{textwrap.dedent(body).strip()}"
    number = kernel.ok(cell).number
    until_all_say(kernel, "up", ranks)
    kernel.ok("staying_.stop()")
    return f"Cell In[{number}]"


def interrupted_twice(kernel, line, body, ranks=2):
    """Interrupt a cell again while its ranks stay, wait for its end and return its label."""
    cell = interrupted(kernel, line, body, ranks)
    until_all_say(kernel, "stays", ranks)
    until(kernel, SEEN.format(line_of(body, "stays"), ranks))
    kernel.ok("staying_.stop()\nstaying_.join_end()")
    return cell


def told(kernel, run="staying_"):
    """All messages of a run: its repr, its notices and its error."""
    notices = f"*(notice.text for notice in {run}.state.notices)"
    said = f"'\\n'.join([repr({run}), {notices}, str(__import__('xla_nb').RunFailed({run}))])"
    return eval(kernel.value(said))

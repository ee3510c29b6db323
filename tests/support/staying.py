"""Cells whose ranks an interrupt does not end, in a real kernel, and what is told of them."""

import textwrap

SEEN = "all(s and s.place.endswith(', line {}') for s in map(staying_.sample, range({})))"
#: Each says `up`, then `stays` once an interrupt has struck. Comments mark the line at which it
#: strikes, and the one at which the rank stays.
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
    "in an except that goes on": """
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
#: It holds the interpreter, so that nothing in the process can say where it is.
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
    """The place `Cell In[3]` of a cell that was interrupted once all its ranks were up."""
    cell = f"{line} --view none --bg -o staying_\n{textwrap.dedent(body).strip()}"
    number = kernel.ok(cell).number
    until_all_say(kernel, "up", ranks)
    kernel.ok("staying_.stop()")
    return f"Cell In[{number}]"


def interrupted_twice(kernel, line, body, ranks=2):
    """The same of one that was interrupted again as its ranks stayed, and has ended."""
    cell = interrupted(kernel, line, body, ranks)
    until_all_say(kernel, "stays", ranks)
    until(kernel, SEEN.format(line_of(body, "stays"), ranks))
    kernel.ok("staying_.stop()\nstaying_.join_end()")
    return cell


def told(kernel, run="staying_"):
    """All that a run says of itself, in lines."""
    notices = f"*(notice.text for notice in {run}.state.notices)"
    said = f"'\\n'.join([repr({run}), {notices}, str(__import__('xla_nb').RunFailed({run}))])"
    return eval(kernel.value(said))

"""pandas objects that share memory stay independent when one is written to."""

import os

import pytest

from tests.support.returned import returned

pd = pytest.importorskip("pandas")

TABLES = """
import pandas as pd
df = pd.DataFrame({"x": [1.0, 2.0, 3.0], "y": [0.0, 1.0, 0.0], "id": [7, 8, 9]})
y, X, head, alike = df["y"], df[["x"]], df.head(2), df.copy(deep=False)
keyed = df.set_index("id", drop=False)
names = pd.Index(df["id"])
renamed, kinds = df.rename(columns=str.upper), df["y"].astype("category")
parts = [kinds, kinds[:2]]
"""
#: Write, expression to check, expected value.
WRITTEN = {
    "a frame with a separate column": ('df.loc[0, "y"] = 9', "y[0], df.y[0]", (0.0, 9.0)),
    "a column of a frame": ("y.iloc[0] = 5", "df.y[0], y[0]", (0.0, 5.0)),
    "the first rows of a frame": ("head.iloc[0, 0] = 8", "df.x[0], alike.x[0]", (1.0, 1.0)),
    "a shallow copy": ("alike.iloc[0, 0] = 8", "df.x[0], X.x[0]", (1.0, 1.0)),
    "a frame with renamed columns": ("renamed.iloc[0, 0] = 8", "df.x[0]", 1.0),
    "the source column of an index": ('df.loc[0, "id"] = 1', "names[0], keyed.index[0]", (7, 7)),
    "a slice of a categorical": ("parts[1].iloc[0] = 1.0", "kinds[0], parts[0][0]", (0.0, 0.0)),
}


@pytest.mark.parametrize(("write", "asked", "expected"), WRITTEN.values(), ids=WRITTEN)
def test_writing_to_one_object_leaves_others_unchanged_on_ranks(notebook, write, asked, expected):
    notebook.run(TABLES)
    got = notebook.launch(f"def f(rank):\n    {write}\n    return {asked}")
    assert got == expected


@pytest.mark.parametrize(("write", "asked", "expected"), WRITTEN.values(), ids=WRITTEN)
def test_writing_to_one_object_leaves_others_unchanged_in_results(notebook, write, asked, expected):
    notebook.run(TABLES)
    names = "df", "y", "X", "head", "alike", "keyed", "names", "renamed", "kinds", "parts"
    held = dict(zip(names, returned([notebook.values[n] for n in names], {}), strict=True))
    exec(write, held)
    assert eval(asked, held) == expected


def test_shared_memory_is_sent_once(notebook):
    notebook.run(
        "import pandas as pd, numpy as np\n"
        "df = pd.DataFrame({'x': np.zeros(1_000_000)})\nparts = [df['x'], df.head(10), df]"
    )
    fd = notebook.build("def f(rank): return len(parts)").parcel.to_memfd()
    assert os.fstat(fd).st_size < 9_000_000
    os.close(fd)

"""Whether a cell that was run again returned what it had returned before."""

from xla_nb.run.replaying import Returned, difference, not_compared


def results(*digests, why=""):
    return {rank: Returned(one, f"<{one}>", "" if one else why) for rank, one in enumerate(digests)}


def test_equal_results_do_not_differ():
    assert difference("Cell In[3]", results("a", "b"), results("a", "b")) == ""


def test_ranks_that_return_something_else_are_named_with_the_first_ones_results():
    told = difference("Cell In[3]", results("a", "b", "c"), results("a", "x", "y"))
    assert told == "Cell In[3] returned something else on ranks 1, 2 than before: <x>, not <b>"


def test_what_is_not_known_is_no_difference_and_is_told():
    before, now = results("a", "", why="they are too large"), results("a", "b")
    assert difference("Cell In[3]", before, now) == ""
    told = not_compared("Cell In[3]", before, now)
    assert "Cell In[3] were not compared" in told
    assert "(rank 1): they are too large." in told

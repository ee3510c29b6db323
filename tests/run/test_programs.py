"""Programs given to live ranks: applied from events, and described in a sentence."""

from xla_nb.messages import events
from xla_nb.monitor import sentences
from xla_nb.monitor.state import RunState


def group(*happened, ranks=4):
    state = RunState()
    state.apply(events.JobStarted(ranks=ranks, simulated=True))
    state.apply(events.GroupBegan(name="ranks"))
    for rank in range(ranks):
        state.apply(events.RankStarted(rank=rank, pid=100 + rank, device="xla:0"))
    for event in happened:
        state.apply(event)
    return state


def began(number, *ranks, at=10.0):
    chosen = ranks or (0, 1, 2, 3)
    label = f"Cell In[{number}]"
    return events.ProgramBegan(number=number, run=f"r{number}", label=label, ranks=chosen, at=at)


def ended(number, outcome="finished", at=12.0):
    return events.ProgramEnded(number=number, outcome=outcome, headline="how", at=at)


def test_rank_runs_a_program_from_its_beginning_to_its_end():
    state = group(began(1, 0, 2))
    assert state.programs.now(2).label == "Cell In[1]"
    assert state.programs.now(1) is None
    state.apply(ended(1))
    assert state.programs.now(2) is None
    assert (state.programs.rested(2), state.programs.rested(1)) == (12.0, None)


def test_programs_are_numbered_by_their_place():
    state = group(began(1))
    for number in range(2, 6):
        state.apply(began(number, 0))
        state.apply(ended(number, "failed" if number % 2 else "finished"))
    assert len(state.programs) == 5
    assert [one.place for one in state.programs] == [1, 2, 3, 4, 5]
    assert [one.began.number for one in state.programs.running] == [1]


def test_live_ranks_without_a_cell_are_idle():
    assert sentences.headline(group()) == "4 live ranks, idle"
    assert sentences.headline(group(began(1), ended(1))) == "4 live ranks, idle"


def test_headline_names_running_cells_and_their_ranks():
    assert sentences.headline(group(began(7))) == "Cell In[7] is running on ranks 0–3"
    doing = {0: "running", 1: "idle", 2: "waiting", 3: "idle"}  # two have ended it
    assert sentences.headline(group(began(7)), doing) == "Cell In[7] is running on ranks 0, 2"
    both = group(began(7, 0), began(8, 1, 2))
    assert (
        sentences.headline(both) == "Cell In[7] on rank 0 and Cell In[8] on ranks 1, 2 are running"
    )


def test_headline_of_ended_live_ranks_states_the_reason():
    why = events.GroupEnding(why="after 30 min without a cell (--idle)")
    over = [events.RankFinished(rank=rank, preview="", nbytes=0) for rank in range(4)]
    assert sentences.headline(group(why)) == "4 live ranks ending"
    told = "4 live ranks ended after 30 min without a cell (--idle)"
    assert sentences.headline(group(why, *over)) == told


def test_headline_states_the_first_reason_to_end():
    both = [events.GroupEnding(why="by %xla_shutdown"), events.GroupEnding(why="by an accident")]
    over = [events.RankFinished(rank=rank, preview="", nbytes=0) for rank in range(4)]
    assert sentences.headline(group(*both, *over)) == "4 live ranks ended by %xla_shutdown"


def test_headline_of_live_ranks_stopped_to_end_states_the_reason():
    why = events.GroupEnding(why="by %xla_shutdown")
    stop = events.StopRequested(why="Stopped because the live ranks were ended")
    over = [events.RankStopped(rank=rank) for rank in range(4)]
    assert sentences.headline(group(why, stop, *over)) == "4 live ranks ended by %xla_shutdown"


def test_headline_names_a_dead_rank_first():
    died = events.ProcessDied(pid=102, status=3)
    assert sentences.headline(group(died)).startswith("Rank 2 exited with status 3")
    ending = events.GroupEnding(why="by %xla_shutdown")
    assert sentences.headline(group(died, ending)).startswith("Rank 2 exited with status 3")


def test_live_ranks_that_ended_because_their_job_was_killed_are_lost():
    over = [events.RankFinished(rank=rank, preview="", nbytes=0) for rank in range(4)]
    state = group(*over, events.JobEnded(status=-9))
    told = "Ranks 0–3 were lost: their job was killed by SIGKILL"
    assert sentences.headline(state).startswith(told)
    meant = group(events.GroupEnding(why="by %xla_shutdown"), *over, events.JobEnded(status=0))
    assert sentences.headline(meant) == "4 live ranks ended by %xla_shutdown"

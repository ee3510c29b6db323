"""The job, which loads a program and forks ranks, and the ranks, which run it and report."""

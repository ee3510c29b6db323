"""The job, which loads a program and forks the ranks, and the ranks, which run it and report."""

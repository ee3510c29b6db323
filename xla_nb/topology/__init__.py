"""Hosts, slices and chips of machines, and the variables that each process needs."""

"""Hosts, slices and chips: what a machine has, and which variables each process needs."""

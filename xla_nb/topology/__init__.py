"""Hosts, slices and chips: what a machine has, and what tells each process its place."""

"""Ranks on the hosts of a Ray cluster.

`engine` speaks in the notebook's kernel to a process of ours, `driver`, which is the cluster's
client; it has an actor on each host, `host`, which drives a LocalEngine there. Ray never comes into
the kernel: a cluster that loses its head ends its clients.
"""

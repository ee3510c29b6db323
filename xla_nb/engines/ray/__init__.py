"""Ranks on the hosts of a Ray cluster.

`engine`, in the notebook's kernel, talks to a helper process, `driver`, which is the cluster's
client. The driver has an actor on each host, `host`, which runs a LocalEngine there. The kernel
never imports Ray, because Ray ends its clients when the cluster loses its head.
"""

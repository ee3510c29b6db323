"""The simulated TPU host: real processes on CPU that answer torch_xla as the cores of a TPU do.

`host.install(place)` prepares the process that calls `xmp.spawn`; from there on torch_xla starts
the ranks itself. `mesh` moves bytes, `agreement` makes sure that all mean the same operation,
`collectives` carries it, `torch_names` puts it under torch_xla's and torch.distributed's names.
"""

"""The simulated TPU host: real CPU processes that look to torch_xla like the cores of a TPU.

`host.install(share)` prepares the process that calls `xmp.spawn`; torch_xla then starts the ranks
itself. `mesh` moves bytes, `agreement` checks that all ranks call the same operation, `collectives`
performs it, `torch_names` installs it under torch_xla's and torch.distributed's names.
"""

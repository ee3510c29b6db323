"""xla_nb: run a notebook cell on every rank of a TPU, or of a simulated TPU host."""

__version__ = "0.1.0"

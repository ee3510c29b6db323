"""The files of a run: what is written where, and how it is read while it grows."""

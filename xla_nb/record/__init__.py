"""The files of a run: their names, what they hold, and how to read them while they grow."""

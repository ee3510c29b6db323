"""The files of a run: their names, their content, and how to read them while they grow."""

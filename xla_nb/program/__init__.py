"""A cell becomes a program: what it needs from the notebook, as a module's source and values."""

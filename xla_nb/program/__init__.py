"""A cell becomes a program: what it needs of the notebook, as a module's source and its values."""

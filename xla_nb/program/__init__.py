"""Turn a cell into a program: a module's source, and the values it needs from the notebook."""

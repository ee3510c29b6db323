"""Views of a run: a live panel, plain text, and the snapshot kept in a saved notebook."""

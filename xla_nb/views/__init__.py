"""What people see of a run: a live panel, plain text, and what a saved notebook keeps."""

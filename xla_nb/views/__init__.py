"""What people see of a run: a live panel, plain text, and what stays in a saved notebook."""

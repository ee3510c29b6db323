"""What a user sees: a cell's output, a file, numbers. Nothing here knows the insides."""

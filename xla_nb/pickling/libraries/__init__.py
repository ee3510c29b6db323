"""State of libraries' objects that their own pickling leaves out."""

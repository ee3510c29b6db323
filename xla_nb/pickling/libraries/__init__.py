"""What libraries' objects are made of, beside what their own pickling does."""

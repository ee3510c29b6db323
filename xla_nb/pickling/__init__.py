"""The notebook's objects as one pickle, and results back."""

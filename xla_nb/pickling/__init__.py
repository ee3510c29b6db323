"""Send the notebook's objects as one pickle, and results back."""

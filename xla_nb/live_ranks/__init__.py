"""What live ranks lack of the notebook's: what has changed since it was sent."""

"""State of the notebook's process that ranks take on."""

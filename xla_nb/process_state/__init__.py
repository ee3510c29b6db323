"""State of the notebook process that ranks take on."""

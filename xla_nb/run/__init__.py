"""One launch, from the notebook's side: start it, follow it, stop it, read it again."""

"""One launch, from the notebook's side: started, followed, stopped, read again."""

"""Determine what live ranks lack: everything that has changed in the notebook since it was sent."""

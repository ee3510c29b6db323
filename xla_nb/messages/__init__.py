"""Messages between the processes of a run: events, orders and questions; no user objects."""

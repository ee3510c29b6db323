"""What a run's processes tell each other: events, orders and questions; no object of the user's."""

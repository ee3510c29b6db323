"""Where a run's processes start: an engine takes a request and values, and sends events."""

"""What crosses processes: orders and values to ranks, events and results back."""

"""What crosses processes: orders and values to the ranks, events and results back."""

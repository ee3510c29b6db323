"""What the ranks of a run do and how it ends: events folded into a state, activity, hangs, and all
sentences about them."""

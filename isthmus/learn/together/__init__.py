"""Many clients as one: blocks of clients whose weights are stacked, and one step for all."""

"""Properties of a client's data that no task is about, and what single clients hold under a sum."""

"""Guards: what is done to the messages of a course before they leave and after they arrive."""

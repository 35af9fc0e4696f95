"""Search over the keys of a course at many fidelities: trials are runs that are frozen and thawed."""

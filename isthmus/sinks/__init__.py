"""Where the metrics of a run can be sent while it runs."""

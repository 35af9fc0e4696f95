"""An audit: attacks on a course and its shadows, under each list of guards, beside who sees nothing."""

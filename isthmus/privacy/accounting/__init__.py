"""What noise promises: epsilon and delta of what was released, exactly where that is known, and never too small."""

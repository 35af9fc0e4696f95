"""Guards that look at replies before they count: checks with named failures, folds that hold against wrong replies."""

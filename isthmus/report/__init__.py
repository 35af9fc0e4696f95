"""Tables and files made from journals only."""

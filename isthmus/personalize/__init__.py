"""Which parameters clients share, and which stay with them."""

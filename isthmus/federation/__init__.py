"""A course between sites: kits, what server and silos agree on, policies, the server's and the silo's process."""

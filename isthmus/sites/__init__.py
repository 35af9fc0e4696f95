"""A course between sites. The verbs are files: serve, join, submit, up."""

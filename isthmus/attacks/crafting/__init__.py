"""Malicious servers: models that are sent to clients because of what their replies will tell."""

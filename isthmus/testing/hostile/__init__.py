"""Parties that mean harm, for tests: silos that lie to a server, a server that besieges a silo, and what they cost."""

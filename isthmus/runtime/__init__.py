"""Runtimes: what carries an exchange between the server half and the client half of an algorithm."""

"""Suites: methods x datasets x splitters x seeds as one table, beside a paper's numbers."""

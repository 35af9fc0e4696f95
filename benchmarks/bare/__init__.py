"""Federated methods as an expert writes them with torch and torch_geometric alone: one small file for each."""

"""Write the northern bank's graph as a GraphML file: python make_network.py bank.graphml."""

import sys
from pathlib import Path

import networkx
import pandas as pd

HERE = Path(__file__).parent


def main(path: str) -> None:
    """Write the file; an attribute that is missing is left out."""
    graph = networkx.Graph()
    for row in pd.read_csv(HERE / "north_customers.csv").to_dict("records"):
        customer = row.pop("customer")
        graph.add_node(customer, **{name: value for name, value in row.items() if not pd.isna(value)})
    for payer, payee, amount in pd.read_csv(HERE / "north_payments.csv").itertuples(index=False):
        graph.add_edge(payer, payee, weight=float(amount))
    networkx.write_graphml(graph, path)


if __name__ == "__main__":
    main(sys.argv[1])

"""Write a small torch_geometric graph of the northern bank: python make_pyg.py graph.pt."""

import sys
from pathlib import Path

import pandas as pd
import torch
from torch_geometric.data import Data

HERE = Path(__file__).parent


def main(path: str) -> None:
    """Write the file: age and income as features, the segment's number as class."""
    customers = pd.read_csv(HERE / "north_customers.csv")
    payments = pd.read_csv(HERE / "north_payments.csv")
    number = {customer: place for place, customer in enumerate(customers["customer"])}
    data = Data(
        x=torch.tensor(customers[["age", "income"]].to_numpy(), dtype=torch.float32),
        y=torch.tensor(customers["segment"].astype("category").cat.codes.to_numpy(), dtype=torch.int64),
        edge_index=torch.tensor([[number[name] for name in payments[end]] for end in ("payer", "payee")]),
        node_id=list(customers["customer"]),
    )
    torch.save(data, path)


if __name__ == "__main__":
    main(sys.argv[1])

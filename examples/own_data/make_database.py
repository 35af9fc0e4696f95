"""Put the northern bank's two tables into a SQLite file: python make_database.py bank.db."""

import sqlite3
import sys
from pathlib import Path

import pandas as pd

HERE = Path(__file__).parent


def main(path: str) -> None:
    """Write the file."""
    with sqlite3.connect(path) as database:
        pd.read_csv(HERE / "north_customers.csv").to_sql("customers", database, index=False)
        pd.read_csv(HERE / "north_payments.csv").to_sql("payments", database, index=False)
    database.close()


if __name__ == "__main__":
    main(sys.argv[1])

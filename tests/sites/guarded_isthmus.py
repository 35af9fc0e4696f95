"""`python -m isthmus` where the guards that tests have are installed."""

from __future__ import annotations

from isthmus.cli import main
from isthmus.testing.hostile.siege import known_here
from tests.core.guards.toys import Adding, Affine, Boxed, Counting

if __name__ == "__main__":
    with known_here(Adding, Affine, Boxed, Counting):
        main()

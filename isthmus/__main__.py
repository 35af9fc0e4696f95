"""Lets `python -m isthmus` do what `isthmus` does."""

from isthmus.cli import main

if __name__ == "__main__":
    main()

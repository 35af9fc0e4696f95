"""Splitters by name: how one graph is divided among clients."""

from __future__ import annotations

from isthmus.data.splitters.community import CommunitySplitter
from isthmus.data.splitters.random import RandomSplitter
from isthmus.data.splitters.splitter import Splitter

SPLITTERS: dict[str, type[Splitter]] = {"random": RandomSplitter, "community": CommunitySplitter}

__all__ = ["SPLITTERS", "CommunitySplitter", "RandomSplitter", "Splitter"]

"""The one record of a run: journal, checkpoints, sinks."""

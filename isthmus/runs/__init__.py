"""The life of a run: scenario, simulation, journal, checkpoint, folder, result."""

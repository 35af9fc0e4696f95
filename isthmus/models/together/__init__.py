"""What models need so that many clients run at once: stacked weights, streams, spans."""

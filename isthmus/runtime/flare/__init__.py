"""NVIDIA FLARE: the only place that imports nvflare.

Of FLARE we use the cells (its transport: gRPC with mutual TLS, where a party's name must be the one in its certificate,
with reconnection and liveness) and its provisioning (a root certificate, and a certificate for each party). We do not
use its jobs: a job fixes its members when it starts, ends when one is lost, and costs a new process at every site.
"""

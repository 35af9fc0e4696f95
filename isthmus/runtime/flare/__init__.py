"""NVIDIA FLARE: the only place that imports nvflare.

Of FLARE we use the cells (transport by gRPC with mutual TLS) and the provisioning of certificates, but not the jobs: a
job fixes its members when it starts, and ends when one is lost.
"""

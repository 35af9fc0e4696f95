"""Tests run in several processes, so each keeps to one thread; so do the processes that tests start."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

torch.set_num_threads(1)

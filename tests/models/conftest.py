from __future__ import annotations

import torch

# Toy graphs gain nothing from threads, and test processes side by side lose much.
torch.set_num_threads(1)

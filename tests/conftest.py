"""One thread a test: tiny sizes gain nothing from more, and sums are taken in one order."""

import torch

torch.set_num_threads(1)

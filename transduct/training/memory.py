"""Peak memory of a process, for the log of a run and `transduct bench`; does not import torch."""

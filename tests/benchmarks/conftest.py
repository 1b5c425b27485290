"""Benchmarks are scripts: they find each other because Python puts their folder on the path, as is
done here."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

"""Data sets, their partition over devices, and the mini model's inputs. Importing this package loads NumPy only."""

from hflray.data.datasets import Dataset, load_dataset
from hflray.data.partition import build_partition
from hflray.data.preprocess import preprocess

__all__ = ["Dataset", "build_partition", "load_dataset", "preprocess"]

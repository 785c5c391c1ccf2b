"""Use an allocator that a library of stock has put into the table of the patched unit."""

import warnings

import torch

with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    tensor = torch.empty(3)
print([str(item.message).partition(" (")[0] for item in seen], tensor.numel())

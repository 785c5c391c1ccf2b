"""Shuffle a tensor with too few dimensions, and one that has enough."""

import torch

try:
    torch.pixel_unshuffle(torch.zeros(2, 2), 2)
except RuntimeError as error:
    print(str(error).splitlines()[0])
print(torch.pixel_unshuffle(torch.arange(4.0).reshape(1, 1, 2, 2), 2).tolist())

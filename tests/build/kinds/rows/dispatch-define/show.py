"""Quantize with the kernels that stock registers for the stub of the patched unit."""

import torch

print(torch.fake_quantize_per_tensor_affine(torch.tensor([0.3, 2.9]), 1.0, 0, 0, 255).tolist())

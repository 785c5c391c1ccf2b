"""Warn twice at one place."""

import torch

print(torch.is_warn_always_enabled())
torch.set_warn_always(False)
print(torch.is_warn_always_enabled())

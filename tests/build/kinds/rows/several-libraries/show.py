"""Ask three libraries."""

import torch


def hinted():
    try:
        torch._C._cuda_synchronize()
    except RuntimeError as error:
        return "asynchronously" in str(error)


number = (torch.ones(1, requires_grad=True) + 1).grad_fn._sequence_nr()
print(torch.is_warn_always_enabled(), number // 1000, hinted())

"""Print the sequence numbers of two operations of autograd."""

import torch

x = torch.ones(1, requires_grad=True)
first, second = (x + 1).grad_fn._sequence_nr(), (x + 1).grad_fn._sequence_nr()
print(first // 1000, second - first)

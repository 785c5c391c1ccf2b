"""Count the keys of a store: C++ calls through the table of virtual functions."""

import torch.distributed as dist

store = dist.HashStore()
store.set("key", "value")
print(store.num_keys())

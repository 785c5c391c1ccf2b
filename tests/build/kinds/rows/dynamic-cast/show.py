"""Count keys through a prefix: the overlay looks at the type of an object of stock."""

import tempfile

import torch.distributed as dist

with tempfile.TemporaryDirectory() as folder:
    stores = [dist.HashStore(), dist.PrefixStore("inner", dist.HashStore())]
    print([dist.PrefixStore("outer", store).num_keys() for store in stores])

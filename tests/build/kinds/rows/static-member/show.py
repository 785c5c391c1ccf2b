"""Count the keys of a store in a file."""

import tempfile

import torch.distributed as dist

with tempfile.NamedTemporaryFile() as file:
    store = dist.FileStore(file.name, -1)
    store.set("key", "value")
    store.num_keys()
    print(store.num_keys())

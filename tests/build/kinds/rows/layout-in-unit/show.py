"""Write a value to a file and read it."""

import tempfile

import torch.distributed as dist

with tempfile.NamedTemporaryFile() as file:
    store = dist.FileStore(file.name, -1)
    store.set("key", "value")
    print(store.get("key"))

"""Wait for a key that does not come."""

from datetime import timedelta

import torch.distributed as dist

try:
    dist.PrefixStore("prefix", dist.HashStore()).wait(["absent"], timedelta(milliseconds=10))
except dist.DistStoreError as error:
    print("DistStoreError:", str(error).splitlines()[0])

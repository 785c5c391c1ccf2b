"""Delete a key that is not there."""

import torch.distributed as dist

try:
    print(dist.HashStore().delete_key("absent"))
except ValueError as error:
    print("ValueError:", str(error).splitlines()[0])

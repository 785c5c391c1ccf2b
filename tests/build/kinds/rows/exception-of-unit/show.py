"""Delete a key that is not there: the type of the exception is in no library of stock."""

import torch.distributed as dist

try:
    print(dist.HashStore().delete_key("absent"))
except IndexError as error:
    print("IndexError:", str(error).splitlines()[0])

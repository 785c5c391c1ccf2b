"""Makes a group of two of nccl2 without its peer, and prints the error; its argument is ncclConfig_t's `blocking`."""

from __future__ import annotations

import datetime
import importlib
import os
import sys
from typing import Any

import torch
import torch.distributed as dist

ProcessGroupNCCL2: Any = importlib.import_module("torch._C._distributed_c10d").ProcessGroupNCCL2  # not in every torch
device = torch.device("cuda:0")
store = dist.TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
options: Any = dist.ProcessGroupNCCL.Options()
options._timeout = datetime.timedelta(seconds=2)
options.config.blocking = int(sys.argv[1])
try:
    try:
        group = ProcessGroupNCCL2(store, 0, 2, options, device)
    except TypeError:  # 2.14 makes the communicator later
        group = ProcessGroupNCCL2(store, 0, 2, options)
        group.eager_connect_single_device(device)
except Exception as error:  # noqa: BLE001 - which exception it is is what is tested
    sys.stdout.write(f"{type(error).__name__}: {error}")
    sys.stdout.flush()
os._exit(0)

"""Fail three times without a device: the message has a hint."""

import torch


def hinted():
    try:
        torch._C._cuda_synchronize()
    except RuntimeError as error:
        return "asynchronously" in str(error)


print([hinted() for _ in range(3)])

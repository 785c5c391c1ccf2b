"""Tests of worlds as process groups of torch.distributed."""

"""NCCL fault probes without a GPU: the real ProcessGroupNCCL on an imitated CUDA runtime and NCCL."""

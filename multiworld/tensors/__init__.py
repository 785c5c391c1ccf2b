"""Tensors that are accepted, the memory in which they travel, and the check of borrowed memory."""

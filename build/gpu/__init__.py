"""Tests on a real NVIDIA device: `run` runs them, also on a machine without network, for which `bundle` packs all.

`run` and what it imports need the standard library only.
"""

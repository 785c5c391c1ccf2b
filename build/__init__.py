"""The tooling: get PyTorch at a release, apply a patch series, build and prove an overlay, port the series.

Not to be confused with the PyPA frontend of the same name, which this project does not use.
"""

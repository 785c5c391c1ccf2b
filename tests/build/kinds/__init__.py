"""Table of real patches of PyTorch, each of another kind, with what has to become of it.

Each row is a folder of `rows/`, and all of its files are data:

- `change.patch`: the patch as bytes, made with `git diff` in the tree of the release.
- `row.toml`: `kind` (one line), `release` (default 2.6.0), `outcome`, and `arguments` for `build` (default none).
  With `outcome = "behaves"`: `stock` and `patched`, what `show.py` prints on either torch, without the last newline.
  With `outcome = "refused"`: `reason`, a regular expression that the one message of `build` has, in one line;
  and `explain = "refused"` where `explain` must refuse the patch too (`reason` counts there as well).
- `show.py`, with `behaves`: a program that runs the changed code and prints what it did. It runs in an environment with
  the official wheel, alone and with the overlay wheel beside it. Its folder may have further files of its own.

`python -m tests.build.kinds [NAME…]` builds each row with the real sources and wheel, and runs its program.
There is no third outcome: a patch that builds must behave.
"""

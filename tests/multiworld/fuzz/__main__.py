"""Fuzz for longer than the suite does: ``python -m tests.multiworld.fuzz --frames 10000000``."""

from __future__ import annotations

import argparse
import random

from multiworld import MultiWorld
from tests.multiworld.fuzz import greetings
from tests.multiworld.fuzz.target import run


def main() -> None:
    """Run until all frames are written or the time is over; an ``AssertionError`` is a finding."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=10_000_000, help="how many frames (default: %(default)s)")
    parser.add_argument("--greetings", type=int, default=200_000, help="how many greetings (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=3600.0, help="how long at most (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="default: drawn and printed")
    parser.add_argument("--wildness", type=float, default=0.003, help="share of wrong frames (default: %(default)s)")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    print(greetings.run(seed=options.seed, greetings=options.greetings, seconds=options.seconds), flush=True)
    with MultiWorld() as host:  # not a store in a file, which grows with every generation
        report = run(
            str(host.serve_store()),
            seed=options.seed,
            frames=options.frames,
            seconds=options.seconds,
            wildness=options.wildness,
            progress=lambda so_far: print(so_far, flush=True),
        )
    print(report)


if __name__ == "__main__":
    main()

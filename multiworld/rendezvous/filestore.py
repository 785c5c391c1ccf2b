"""torch's store in a file, whose end does not end the process."""

from __future__ import annotations

import torch.distributed as dist

from multiworld.net.descriptors import none_free
from multiworld.process import immortal


class FileStore(dist.FileStore):  # type: ignore[misc]  # torch is not followed by the type checker
    """``torch.distributed.FileStore``, kept for good where no descriptor is free when it is dropped.

    Its destructor opens the file once more, and one that cannot do so ends the process.
    """

    def __del__(self) -> None:
        if none_free():
            immortal(self)

"""The torch under test is a whole torch: version, tensors, autograd, Gloo over two processes."""

from __future__ import annotations

from tests.wheel.conftest import Subject

_TENSORS = """
import json, torch
x = torch.arange(6.0, dtype=torch.float64).reshape(2, 3).requires_grad_()
(x.pow(3) @ torch.ones(3, 1, dtype=torch.float64)).sum().backward()
print(json.dumps({"grad": x.grad.tolist(), "conv": list(torch.nn.Conv2d(1, 2, 3)(torch.ones(1, 1, 5, 5)).shape)}))
"""

_GLOO = """
import json, os, sys, tempfile
import torch, torch.distributed as dist, torch.multiprocessing as mp
from datetime import timedelta

def worker(rank, path):
    limit = timedelta(seconds=60)
    dist.init_process_group("gloo", init_method="file://" + path, rank=rank, world_size=2, timeout=limit)
    t = torch.full((4,), float(rank + 1))
    dist.all_reduce(t)
    assert t.tolist() == [3.0] * 4, t
    dist.destroy_process_group()

pid_dir = tempfile.mkdtemp()
path = os.path.join(pid_dir, "store")
child = os.fork()
if child == 0:
    worker(1, path)
    os._exit(0)
worker(0, path)
_, status = os.waitpid(child, 0)
print(json.dumps(status))
"""

_VERSION = """
import json, torch
from importlib.metadata import distribution
print(json.dumps([torch.__version__, distribution("torch").version, torch.version.git_version, torch.version.cuda]))
"""


def test_version_names_the_build(subject: Subject) -> None:
    found = subject.ask(_VERSION)
    assert isinstance(found, list)
    shown, metadata, commit = found[:3]
    proven = subject.record.provenance
    assert commit == proven.commit
    if subject.form == "patched":
        assert shown == metadata == proven.version
    else:
        assert shown.split("+")[0] == metadata == proven.release


def test_tensors_and_autograd(subject: Subject) -> None:
    found = subject.ask(_TENSORS)
    assert found == {"grad": [[0.0, 3.0, 12.0], [27.0, 48.0, 75.0]], "conv": [1, 2, 3, 3]}


def test_gloo_all_reduce_over_two_processes(subject: Subject) -> None:
    assert subject.ask(_GLOO) == 0

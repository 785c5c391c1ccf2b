"""Ask the server of the control plane for a dump with a parameter that it does not know."""

import http.client
import socket
import tempfile
from pathlib import Path

from torch._C._distributed_c10d import _WorkerServer

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "socket")
    server = _WorkerServer(str(path))
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(60)
        client.connect(str(path))
        connection = http.client.HTTPConnection("localhost", timeout=60)
        connection.sock = client
        connection.request("POST", "/handler/dump_nccl_trace_pickle?odd=1")
        answer = connection.getresponse()
        print(answer.status, answer.read().decode())
        connection.close()
    server.shutdown()

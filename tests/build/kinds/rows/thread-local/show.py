"""Print the setting of this thread and of another one."""

import threading

import torch

torch._C._set_graph_executor_optimize(not torch._C._get_graph_executor_optimize())
seen = [torch._C._get_graph_executor_optimize()]
thread = threading.Thread(target=lambda: seen.append(torch._C._get_graph_executor_optimize()))
thread.start()
thread.join()
print(seen)

"""An event loop that is run by one thread and then by another: whoever completes an operation wakes it."""

from __future__ import annotations

import asyncio
import threading

import torch
from procs import wait_until
from table import members

SECONDS = 10.0


def test_the_thread_that_ran_a_loop_before_wakes_it_in_the_thread_that_runs_it_now(store: str) -> None:
    loop = asyncio.new_event_loop()
    with members(store, 2) as ((first, second), pool):
        told = pool.submit(second.sync.send, torch.ones(1), 0)
        loop.run_until_complete(first.recv(torch.zeros(1), 1))
        told.result(SECONDS)
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        try:
            got = torch.zeros(1)
            waiting = asyncio.run_coroutine_threadsafe(first.recv(got, 1, tag=1), loop)
            wait_until(lambda: bool(first.member.session.engine.operations), SECONDS, "it does not begin")
            (operation,) = first.member.session.engine.operations
            with first.member.session.lock:  # what this thread does when it waits itself, and the answer comes
                operation.complete(1)
            assert waiting.result(SECONDS) == 1
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(SECONDS)
            loop.close()

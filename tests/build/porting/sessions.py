"""Code around the examples, so that they have a place."""

from __future__ import annotations

from build.porting.textport import TextPort

from .code import port

HEAD = """\
#include <stdio.h>
#include "session.h"

static int open_session(struct session *session)
{
  session->opened = time(NULL);
  session->count = 0;
  return session_register(session);
}

"""
TAIL = """\

int close_session(struct session *session)
{
  session_unregister(session);
  log_closed(session->name, session->count);
  return 0;
}
"""


def ported(old: str, patched: str, new: str) -> TextPort:
    return port(HEAD + old + TAIL, HEAD + patched + TAIL, HEAD + new + TAIL)


def nothing_put_in(found: TextPort, new: str) -> None:
    assert found.new.decode() == HEAD + new + TAIL, [h.evidence for h in found.hunks]

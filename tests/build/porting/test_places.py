"""A hunk whose place only seems to be gone or uncertain is placed.

Each example is made after a real one: the port of a Debian patch that its maintainer decided otherwise.
"""

from __future__ import annotations

from .sessions import ported

STRUCT = """\
struct connection {
%s  struct queue pending;
  char *entry_path; /* what the server answered */
%s};
"""


def test_a_place_between_lines_that_occur_once_needs_no_more_support() -> None:
    def members(kind: str, word: str) -> str:
        return "".join(f"  {kind} {word}_{name}_{n}:1;\n" for n in range(4) for name in ("secure", "open", "binary"))

    old = STRUCT % (members("unsigned", "has"), members("unsigned", "may"))
    new = STRUCT % (members("bool", "is"), members("bool", "can"))
    found = ported(old, old.replace("  char *entry_path", "  char *account;\n  char *entry_path"), new)
    assert "  char *account;\n  char *entry_path" in found.new.decode(), found.hunks[0].evidence


def test_lines_that_occur_once_may_be_in_a_function_that_upstream_split_off() -> None:
    block = """\
  if (has_precise_times(session))
    session->times = read_precise_times(session);
  session->modified = session->times[1];
"""
    old = "int stamp_file(struct session *session)\n{\n  flush_buffers(session);\n" + block + "  return 0;\n}\n"
    head = "int stamp_file(struct session *session)\n{\n  flush_buffers(session);\n  return stamp_times(session);\n}\n"
    new = head + "\nstatic int stamp_times(struct session *session)\n{\n" + block + "  return 0;\n}\n"
    patched = old.replace("has_precise_times(session)", "has_precise_times(session) || is_alpha(session)")
    found = ported(old, patched, new)
    assert "|| is_alpha(session)" in found.new.decode(), found.hunks[0].evidence


def test_cmake_has_no_functions_and_its_lines_find_their_place() -> None:
    lines = """\
  find_library(SESSION_LIBRARY NAMES session)
  set(SESSION_SOURCES src/session.c src/queue.c)
  list(APPEND ALL_SOURCES ${SESSION_SOURCES})
"""
    old = f"if(WITH_SESSIONS)\n  message(STATUS sessions)\n{lines}endif()\n"
    new = f"if(WITH_SESSIONS)\n  message(STATUS sessions)\nendif()\nif(NOT BUILD_MINIMAL)\n{lines}endif()\n"
    found = ported(old, old.replace("src/queue.c)", "src/queue.c src/wipe.c)"), new)
    assert "src/queue.c src/wipe.c)" in found.new.decode(), found.hunks[0].evidence

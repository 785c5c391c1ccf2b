"""Upstream moved what a patch adds into a function that it calls next to the place: a person looks."""

from __future__ import annotations

import pytest

from build.series.model import Method, Verdict

from .sessions import HEAD, TAIL, ported

KINDS = ("encryption", "compression", "replication")
MAIN = """\
int mount_volume(const char *name)
{
  struct volume *volume = open_volume(name);

  if (!volume)
    return 1;
%s  status = 3;
%s
  if (needs_recovery(volume)) {
    printf("%%s: mounting read-only", name);
    volume->readonly = 1;
  }
  return run_loop(volume);
}
"""
CHECK = """\
  if (volume_has_feature_%s(global_volume->super)) {
    printf("%%s: %s not supported.", ctx.name);
    goto out;
  }
"""
MOVED = """\
  if (volume_has_feature_%s(v->super)) {
    err_printf(v, "%%s", "%s not supported.");
    return UNSUPPORTED;
  }
"""
FUNCTION = "static int check_support(struct volume *v)\n{\n%s  return 0;\n}\n\n"
CALL = "  report_progress(volume);\n  status = check_support(volume);\n  if (status)\n    goto out;\n"
OLD = MAIN % ("", "")
PATCHED = MAIN % ("", "\n" + "".join(CHECK % (kind, kind) for kind in KINDS))


def test_the_function_called_right_above_has_the_block_under_other_names() -> None:
    new = FUNCTION % "".join(MOVED % (kind, kind) for kind in KINDS) + MAIN % (CALL, "")
    (hunk,) = ported(OLD, PATCHED, new).hunks
    line = (HEAD + new).split("\n").index("  if (volume_has_feature_encryption(v->super)) {") + 1
    assert (hunk.verdict, hunk.method) == (Verdict.CONFLICT, Method.UPSTREAM)
    assert f"what it adds seems to be at lines {line} to " in hunk.evidence


@pytest.mark.parametrize(
    "function",
    [
        FUNCTION % "".join(MOVED % (kind, kind) for kind in ("journals", "snapshots", "quotas")),
        FUNCTION.replace("check_support", "other") % "".join(MOVED % (kind, kind) for kind in KINDS),
    ],
    ids=["the call does something else", "the function is not called there"],
)
def test_other_functions_do_not_keep_a_block_from_its_place(function: str) -> None:
    new = function + MAIN % (CALL, "")
    found = ported(OLD, PATCHED, new)
    assert [hunk.verdict for hunk in found.hunks] == [Verdict.DRIFTED], found.hunks[0].evidence
    assert found.new.decode().count("encryption not supported") == 1 + function.count("encryption not")
    assert found.new.decode().endswith(TAIL)

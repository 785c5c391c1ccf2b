"""Commit patches, with ids that depend on the patches alone, and export commits as patches in one form.

Exporting an applied patch gives the same bytes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from build.errors import PatchError, SourceError
from build.git import Author, Git, init
from build.paths import built_beside
from build.series.model import PatchFile
from build.series.patchfile import is_mail

#: Everything that decides what has changed; no configuration is read (see `build.git`).
_COMPARED = ("--find-renames=50%", "--diff-algorithm=myers", "--no-ext-diff", "--no-textconv", "--no-color")
#: Everything that decides the bytes of a diff. `--binary` and `--unified` imply `--patch`, in a diffstat, too.
_DIFF = ("--full-index", "--binary", "--unified=3", "--src-prefix=a/", "--dst-prefix=b/", *_COMPARED)
_MAIL = ("format-patch", "--stdout", "--zero-commit", "--no-signature", "--no-numbered", "--always", *_DIFF)


def commit_patch(git: Git, tree: str, parent: str, patch: PatchFile) -> str:
    """Commit `tree` on `parent` with a patch's author, date and message; return the commit's id.

    Without a mail header, the message is the patch's description.

    Raises:
        PatchError: the mail header lacks something.
    """
    if not is_mail(patch.data):
        text = git.out("stripspace", stdin=patch.header or patch.name.encode())
        return git.commit(tree, text or patch.name.encode() + b"\n", parent)
    with tempfile.TemporaryDirectory(prefix="multiworld-") as folder:
        body = Path(folder, "message")
        # -b keeps "[c10d]" in a subject and takes only "[PATCH]" away, so that exporting gives it back.
        info = git.out("mailinfo", "-b", "--no-scissors", str(body), str(Path(folder, "diff")), stdin=patch.data)
        pairs = (line.partition(b": ") for line in info.split(b"\n"))
        head = {name.decode("ascii", "replace"): value for name, _, value in pairs if value}
        text = git.out("stripspace", stdin=head.get("Subject", b"") + b"\n\n" + body.read_bytes())
    missing = [name for name in ("Author", "Email", "Date", "Subject") if not head.get(name)]
    if missing:
        what = f"{patch.name}: the mail header lacks {', '.join(missing)}"
        raise PatchError(what, remedy="write it as git format-patch does")
    author = Author(os.fsdecode(head["Author"]), os.fsdecode(head["Email"]), head["Date"].decode())
    return git.commit(tree, text, parent, author)


def export_commit(git: Git, commit: str) -> bytes:
    """Return one commit as a canonical patch file; a merge gives nothing."""
    return git.out(*_MAIL, "-1", commit)


def export_diff(git: Git, old: str, new: str) -> bytes:
    return git.out("diff-tree", "-p", *_DIFF, old, new)


def export_stat(git: Git, old: str, new: str) -> bytes:
    """Return the diffstat of two commits as `git format-patch` writes it."""
    return git.out("diff-tree", "--stat=72", "--summary", *_COMPARED, old, new)


def export_series(git: Git, base: str, head: str) -> list[bytes]:
    """Return the commits of `base..head` as patches, oldest first."""
    commits = git.line("rev-list", "--reverse", "--topo-order", f"{base}..{head}").split()
    return [export_commit(git, commit) for commit in commits]


def write_series(folder: Path, files: Mapping[str, bytes], keep: Iterable[str] = ()) -> None:
    """Write all patches and reports of a release to its folder in one step, and keep the files named in `keep`.

    Call it with the lock on the port held: the leftovers of killed runs are removed.
    """
    with replacing(folder) as new:
        for name in keep:
            if (folder / name).is_file():
                (new / name).write_bytes((folder / name).read_bytes())
        for name, data in files.items():
            (new / name).write_bytes(data)


#: What a clone without all objects needs to fetch a missing one later.
_PROMISOR = r"^(remote\.|extensions\.partialclone)"


def new_repository(source: Git, target: Path) -> Git:
    """Make a repository in the empty folder `target` that has every object of `source`, by hard links where possible.

    The source is only read. The new repository has no commit checked out and no branch.
    """
    target.mkdir(parents=True, exist_ok=True)
    # The objects are the source's, so the format is, too.
    git = init(target, "patched", object_format=source.line("rev-parse", "--show-object-format"))
    inside = target / ".git"
    common = Path(source.line("rev-parse", "--path-format=absolute", "--git-common-dir"))
    _share_objects(common / "objects", inside / "objects")
    if (common / "shallow").is_file():
        shutil.copyfile(common / "shallow", inside / "shallow")
    _copy_promisor(source, git)
    return git


def _share_objects(source: Path, target: Path) -> None:
    """Hard-link the object store; across file systems, refer to it instead."""
    # The object stores that the source itself borrows from.
    listing = source / "info" / "alternates"
    lines = listing.read_text(encoding="utf-8").splitlines() if listing.is_file() else []
    borrowed = [str((source / line).resolve()) for line in lines if line and not line.startswith("#")]
    try:
        for path in source.rglob("*"):
            if path.is_file() and path.parent.name != "info" and path.suffix != ".lock":
                link = target / path.relative_to(source)
                link.parent.mkdir(parents=True, exist_ok=True)
                os.link(path, link)
    except OSError as error:
        if error.errno not in {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP}:
            raise
        borrowed.append(str(source))
    if borrowed:
        info = target / "info"
        info.mkdir(exist_ok=True)
        (info / "alternates").write_bytes("".join(f"{line}\n" for line in borrowed).encode())


def _copy_promisor(source: Git, target: Git) -> None:
    """Let the copy of a partial clone fetch missing objects from the source's remote."""
    if source.call("config", "--get", "extensions.partialClone").returncode:
        return
    target.out("config", "core.repositoryFormatVersion", "1")
    listing = source.out("config", "--local", "-z", "--get-regexp", _PROMISOR)
    for record in listing.split(b"\0")[:-1]:
        key, _, value = os.fsdecode(record).partition("\n")
        target.out("config", "--add", key, value)


@contextlib.contextmanager
def replacing(final: Path) -> Iterator[Path]:
    """Yield an empty folder, which replaces `final` when the block succeeds; call it with the lock on `final` held.

    Raises:
        SourceError: `final` is something else than a folder: a person's, since no run makes such.
    """
    if final.is_symlink() or (final.exists() and not final.is_dir()):
        raise SourceError(f"{final} is in the way: it is not a folder", remedy="give another folder")
    with built_beside(final) as part:
        yield part

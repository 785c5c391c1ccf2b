"""Where a release's source tree comes from: upstream git, a Debian source package, or what the user names."""

from build.sources.acquire import acquire
from build.sources.tree import Proof, SourceKind, SourceTree, TreePurpose, check_belongs, check_headers

__all__ = ["Proof", "SourceKind", "SourceTree", "TreePurpose", "acquire", "check_belongs", "check_headers"]

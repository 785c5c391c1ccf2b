"""Where a release's source tree comes from: upstream git, a Debian source package, or what the user names."""

from build.sources.acquire import acquire
from build.sources.tree import Proof, SkippedOrigin, SourceKind, SourceTree, TreePurpose
from build.sources.verify import HeaderComparison, check_belongs, check_headers

__all__ = [
    "HeaderComparison",
    "Proof",
    "SkippedOrigin",
    "SourceKind",
    "SourceTree",
    "TreePurpose",
    "acquire",
    "check_belongs",
    "check_headers",
]

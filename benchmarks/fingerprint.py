"""Ties a result to the kernels that it was measured on."""

import hashlib
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

_TOKENS = re.compile(
    r"""(?P<kept>"(?:\\.|[^"\\\n])*"|'(?:\\[^']+|[^'\\\n])')"""  # string and character literals: may hold // or spaces
    r"""|//[^\n]*|/\*.*?\*/|\s+""",
    re.DOTALL,
)


def significant(source: str) -> str:
    """C++ source without comments and whitespace."""
    return _TOKENS.sub(lambda match: match["kept"] or "", source)


def kernel_sources(op: str, root: Path = ROOT) -> list[Path]:
    """What an operator's kernels are compiled from: its kernel files and headers, and all of csrc/common."""
    room = [path for path in (root / "csrc" / op).glob("*") if path.suffix in (".cu", ".cuh", ".h")]
    return sorted(room + [path for path in (root / "csrc" / "common").glob("*") if path.is_file()])


def kernel_fingerprint(op: str, root: Path = ROOT) -> str:
    """A hash that changes with the code of an operator's kernels, and not with comments or whitespace."""
    digest = hashlib.sha256()
    for path in kernel_sources(op, root):
        digest.update(f"{path.relative_to(root).as_posix()}\n{significant(path.read_text())}\n".encode())
    return digest.hexdigest()[:16]

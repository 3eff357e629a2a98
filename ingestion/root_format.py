"""Opens ROOT files with uproot, and checks their headers."""

from __future__ import annotations

import struct
from importlib.util import find_spec
from typing import Any, Final

import uproot

from hep_core.input_errors import UnreadableFileError
from hep_core.storage import is_remote, limit_waiting, protocol_of, translate_fs_errors, url_to_fs
from ingestion.errors import TruncatedFileError

#: Classes with the events of a file.
TREES: Final = {"TTree", "TNtuple", "TNtupleD", "ROOT::RNTuple"}
#: From this version of the file format on, ROOT files have 64-bit addresses.
_BIG_FILE_VERSION: Final = 1_000_000
#: For ZLIB baskets, as most Delphes files have them: `isal` (the extra of this name), or `zlib`.
#: isal takes 80 us for an event of 37 kB, Python's zlib 121; Python 3.11, one core.
ZLIB_LIBRARY: Final = "zlib" if find_spec("isal") is None else "isal"

# uproot decompresses with an object of this class; the library in its class ZLIB is for writing.
uproot.compression._DecompressZLIB.library = ZLIB_LIBRARY


class _FirstClassStays(dict[int, type]):
    """Classes by version; the first class of a version stays."""

    def __setitem__(self, version: int, class_: type) -> None:
        self.setdefault(version, class_)


for _class in uproot.classes.values():
    # For a version that uproot does not know, it builds a class from the file's own description and
    # keeps it for all files. A class from a damaged file would replace uproot's own, and every good
    # file after it would look damaged.
    if hasattr(_class, "known_versions"):
        _class.known_versions = _FirstClassStays(_class.known_versions)


def open_root(path: str) -> Any:
    """An open ROOT file, which is a context manager.

    The path is the key of a dictionary, so that uproot does not parse it: it would read '::' in a
    name as a chain of file systems.
    """
    limit_waiting(protocol_of(path))
    options: dict[str, Any] = {}
    if not is_remote(path):
        options = {"handler": uproot.MultithreadedFileSource, "use_threads": False}
    return uproot.open({path: None}, **options)


def check_header(path: str, size: int) -> bool:
    """Compare the end that the ROOT header states (fEND) with the size of the file [bytes].

    The header is the magic 'root', int32 version, int32 fBEGIN, then fEND as int32, or int64 from
    version 1000000 on; all are big-endian. A size of 0 or less is unknown.

    Returns:
        Whether the file has more bytes than its header says, since it was never closed.

    Raises:
        InputFileError: It is no ROOT file, is shorter than its header says, or cannot be read now.
    """
    filesystem, name = url_to_fs(path)
    try:
        with translate_fs_errors(path, "its header"), filesystem.open(name, "rb") as file:
            head = file.read(20)
    except OSError as cause:
        raise UnreadableFileError(
            f"{path} cannot be opened ({cause}). Check its permissions."
        ) from cause
    if not head.startswith(b"root") or len(head) < 20:
        raise UnreadableFileError(
            f"{path} is not a ROOT file (it starts with {head[:4]!r}, a ROOT file with b'root'). "
            f"Take it out of the sample's files, or correct the glob."
        )
    (version,) = struct.unpack_from(">i", head, 4)
    (end,) = struct.unpack_from(">q" if version >= _BIG_FILE_VERSION else ">i", head, 12)
    # A server may not report the size.
    if 0 < size < end:
        raise TruncatedFileError(
            f"{path} is truncated: its header says {end} bytes, {size} are there. "
            f"Copy it again, or take it out of the sample's files."
        )
    return bool(size > end)

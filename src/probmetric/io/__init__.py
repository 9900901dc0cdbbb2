"""Files: written whole or not at all, read with errors that say what to do, identified by digest.

A file system that hangs (a lost network mount) is noticed when a file is opened: after PROBMETRIC_READ_TIMEOUT
seconds (120) the read ends in an error that names the file, instead of never.
"""

from __future__ import annotations

from probmetric.io._reading import (
    FileError,
    check_responds,
    digest_of,
    of_kind,
    present,
    read_csv,
    read_json,
    read_text,
    read_yaml,
    remembered_json,
    sha256_file,
    signed,
    unsigned,
)
from probmetric.io._tensors import content_digest, read_tensors, tensors_digest, write_tensors
from probmetric.io._writing import alone, atomic_path, problem_with, remove, write_json, write_text, write_yaml
from probmetric.io.folders import (
    MARKER,
    check_apart,
    check_claimable,
    check_new_file,
    check_replaceable,
    claim_folder,
    empty_folder,
    foreign_files,
    mark_folder,
    new_folder,
    put_folder,
    remove_folder,
    scratch_folder,
)

__all__ = [
    "MARKER",
    "FileError",
    "alone",
    "atomic_path",
    "check_apart",
    "check_claimable",
    "check_new_file",
    "check_replaceable",
    "check_responds",
    "claim_folder",
    "content_digest",
    "digest_of",
    "empty_folder",
    "foreign_files",
    "mark_folder",
    "new_folder",
    "of_kind",
    "present",
    "problem_with",
    "put_folder",
    "read_csv",
    "read_json",
    "read_tensors",
    "read_text",
    "read_yaml",
    "remembered_json",
    "remove",
    "remove_folder",
    "scratch_folder",
    "sha256_file",
    "signed",
    "tensors_digest",
    "unsigned",
    "write_json",
    "write_tensors",
    "write_text",
    "write_yaml",
]

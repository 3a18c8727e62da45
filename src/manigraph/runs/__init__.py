"""The run directory: what training leaves behind, and all that reports and inference read."""

from manigraph.runs.directory import FORMAT_VERSION, RunDirectory, Status, check_file
from manigraph.runs.files import can_be_written, remove_leftovers, write_atomically, write_bytes, write_json
from manigraph.runs.journal import Journal
from manigraph.runs.provenance import machine, packages, provenance

__all__ = [
    "FORMAT_VERSION",
    "Journal",
    "RunDirectory",
    "Status",
    "can_be_written",
    "check_file",
    "machine",
    "packages",
    "provenance",
    "remove_leftovers",
    "write_atomically",
    "write_bytes",
    "write_json",
]

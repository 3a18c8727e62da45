"""The run directory: what training leaves behind, and all that reports and inference read."""

from manigraph.runs.directory import FORMAT_VERSION, RunDirectory
from manigraph.runs.files import write_atomically, write_json
from manigraph.runs.provenance import provenance

__all__ = ["FORMAT_VERSION", "RunDirectory", "provenance", "write_atomically", "write_json"]

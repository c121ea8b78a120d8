"""One Parquet file of records, on disk or in memory, with what is noted beside them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tolcal.history import columns
from tolcal.model import TolcalError

#: Records a file read from memory may say it has: Parquet packs equal rows into almost nothing.
MAX_ROWS = 50_000_000
_NOTE = b"tolcal"


def read(path: Path) -> pa.Table:
    """TolcalError that names the file if it is missing, damaged or none of ours."""
    try:
        return _parsed(path, path)
    except FileNotFoundError:
        raise TolcalError(f"{path}: no such history; check --history") from None


def parse(name: Path | str, data: bytes) -> pa.Table:
    """The same of a file's bytes."""
    return _parsed(name, pa.BufferReader(data))


def _parsed(name: Path | str, source: Path | pa.BufferReader) -> pa.Table:
    try:
        table = pq.read_table(source)
    except FileNotFoundError:
        raise
    except (OSError, pa.ArrowException) as error:
        raise unreadable(name, error) from None
    return columns.conform(table, name)


def write(
    path: Path | pa.NativeFile, table: pa.Table, dictionaries: list[str] | None = None
) -> None:
    """Flat columns; floats byte-stream-split, which compresses what zstd alone can't.

    ``dictionaries`` are the columns of few values: all others by default.
    """
    floats = [f.name for f in table.schema if pa.types.is_floating(f.type)]
    others = dictionaries or [f.name for f in table.schema if f.name not in floats]
    pq.write_table(
        table,
        path,
        compression="zstd",
        compression_level=9,
        use_dictionary=others,
        use_byte_stream_split=floats,
        row_group_size=131_072,
        write_statistics=False,
    )


def write_noted(path: Path, table: pa.Table, note: bytes) -> None:
    """A file that travels alone, with a note for ``read_noted``."""
    write(path, table.replace_schema_metadata({_NOTE: note}))


def read_noted(name: str, data: bytes, rows: int = MAX_ROWS) -> tuple[pa.Table, bytes]:
    """Records and note of such a file in memory. TolcalError names it as ``name``."""
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        if file.metadata.num_rows > rows:
            raise TolcalError(
                f"{name}: over the limit of {rows} records: it says {file.metadata.num_rows}"
            )
        note = (file.schema_arrow.metadata or {}).get(_NOTE)
        table = file.read()
    except (OSError, pa.ArrowException) as error:
        raise unreadable(name, error) from None
    if note is None:
        raise TolcalError(f"{name}: no manifest in it: not written by `tolcal github ingest`")
    return columns.conform(table, name), note


def unreadable(name: Path | str, error: Exception) -> TolcalError:
    """The error that names such a file."""
    reason = " ".join(str(error).split())[:160]
    return TolcalError(
        f"{name}: unreadable or truncated Parquet ({reason}); restore it from a backup or "
        "artifact (nothing was changed)"
    )

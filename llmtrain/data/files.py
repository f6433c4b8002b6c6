"""Opening files: local or remote (fsspec), plain or compressed, told by their first bytes and never by their name."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import IO, Any, cast

import fsspec

from llmtrain.errors import DataError

TRUNCATED_ARCHIVE_ERRORS = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError)
"""What a decompressor raises where its input is cut short or damaged."""
READ_BUFFER_BYTES = 128 << 10
"""Each lane may have a file open: 512 of them take 64 MB."""


def is_remote(url: str) -> bool:
    """Whether `url` is an fsspec URL, not a path of this machine."""
    return "://" in url


def open_raw(url: str) -> IO[bytes]:
    """The file's bytes as they are, seekable."""
    if not is_remote(url):
        return open(url, "rb", buffering=READ_BUFFER_BYTES)  # noqa: SIM115  (the caller closes it)
    file_system, path = fsspec.core.url_to_fs(url)
    return cast("IO[bytes]", file_system.open(path, "rb"))


class open_decompressed(AbstractContextManager["IO[bytes]"]):  # noqa: N801  (used as `open` is)
    """The file's content, decompressed where its first bytes say gzip, bzip2, xz or zstandard."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stack = ExitStack()

    def __enter__(self) -> IO[bytes]:
        try:
            raw = self._stack.enter_context(open_raw(self._url))
            magic = raw.read(6)
            raw.seek(0)
            stream = self._decompressor(raw, magic)
            return raw if stream is None else self._stack.enter_context(stream)
        except BaseException:
            self._stack.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _decompressor(self, raw: IO[bytes], magic: bytes) -> Any:
        if magic.startswith(b"\x1f\x8b"):
            return gzip.GzipFile(fileobj=raw, mode="rb")
        if magic.startswith(b"\xfd7zXZ\x00"):
            return lzma.LZMAFile(raw, mode="rb")
        if magic.startswith(b"BZh"):
            return bz2.BZ2File(raw, mode="rb")
        if magic.startswith(b"\x28\xb5\x2f\xfd"):
            return _zstandard_reader(raw, self._url)
        return None


def _zstandard_reader(raw: IO[bytes], url: str) -> Any:
    try:
        import zstandard  # type: ignore[import-not-found,unused-ignore]  # (an optional extra)
    except ImportError:
        raise DataError(f"{url} is compressed with zstandard: `pip install zstandard` reads it") from None
    reader = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
    return io.BufferedReader(reader, READ_BUFFER_BYTES)

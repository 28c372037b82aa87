"""Compressed batches: what one side makes the other reads, and nothing larger than the limit."""

from __future__ import annotations

import zlib

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from raylay.services.errors import RemoteProtocolError
from raylay.services.protocol.client.compression import COMPRESSION_TYPES, Decompressor, compressor

pytestmark = pytest.mark.covers("Replication", "Compression and CompressionType")

BYTES_MAX = 4096
KINDS = pytest.mark.parametrize("kind", COMPRESSION_TYPES)


@KINDS
def test_one_connection_reads_batch_after_batch(kind: str) -> None:
    compress, reader = compressor(kind), Decompressor(BYTES_MAX)
    for block in (b"a" * BYTES_MAX, b"b", bytes(range(256)) * 4):
        assert reader.decompress(kind, compress(block)) == block
    assert len(compress(b"a" * BYTES_MAX)) < 100


@pytest.mark.covers("The replication chapters", "chosen at the source")
def test_one_connection_reads_both_kinds() -> None:
    reader = Decompressor(BYTES_MAX)
    for kind in (*COMPRESSION_TYPES, *COMPRESSION_TYPES):
        assert reader.decompress(kind, compressor(kind)(b"runs" * 9)) == b"runs" * 9


@KINDS
def test_what_would_be_above_the_limit_is_refused(kind: str) -> None:
    with pytest.raises(RemoteProtocolError, match="cannot be decompressed"):
        Decompressor(BYTES_MAX).decompress(kind, compressor(kind)(b"a" * (BYTES_MAX + 1)))


def test_a_zstd_frame_that_hides_its_size_is_held_to_the_limit_too() -> None:
    hidden = zstandard.ZstdCompressor(write_content_size=False).compress(b"a" * 1_000_000)
    with pytest.raises(RemoteProtocolError, match="cannot be decompressed"):
        Decompressor(BYTES_MAX).decompress("zstd", hidden)


@KINDS
def test_what_is_cut_short_is_refused(kind: str) -> None:
    whole = compressor(kind)(bytes(range(256)) * 8)
    with pytest.raises(RemoteProtocolError) as caught:
        Decompressor(BYTES_MAX).decompress(kind, whole[:-5])
    assert caught.value.reason == "bad_record"


def test_what_follows_a_zlib_stream_is_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        Decompressor(BYTES_MAX).decompress("zlib", zlib.compress(b"a") + b"more")


@KINDS
@given(st.binary(max_size=200))
def test_noise_raises_nothing_else(kind: str, noise: bytes) -> None:
    try:
        found = Decompressor(BYTES_MAX).decompress(kind, noise)
    except RemoteProtocolError:
        return
    assert len(found) <= BYTES_MAX


def test_there_are_no_others() -> None:
    with pytest.raises(ValueError, match="zstd or zlib"):
        compressor("gzip")

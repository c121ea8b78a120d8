"""One file of a zip, within bounds: what an artifact may be, and everything else it may try."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from github_server.hub import zipped
from hypothesis import given, settings
from hypothesis import strategies as st
from zip_support import Member, raw_zip

from tolcal.github.archive import Rejected, member

NAME = "records.jsonl.gz"
DATA = bytes(range(256)) * 40  # packs to some hundred bytes
LIMIT = 20_000
GOOD = Member(NAME.encode(), DATA)


def rejected(archive: bytes, limit: int = LIMIT) -> str:
    """Why it is refused."""
    with pytest.raises(Rejected) as caught:
        member(archive, NAME, limit, "artifact a")
    text = str(caught.value)
    assert text.startswith("artifact a is refused: ")
    return text.removeprefix("artifact a is refused: ")


def test_the_one_file_is_read() -> None:
    """A zip as upload-artifact makes it, packed or stored, gives its bytes."""
    assert member(zipped({NAME: DATA}), NAME, LIMIT, "a") == DATA
    assert member(raw_zip(GOOD), NAME, LIMIT, "a") == DATA
    assert member(raw_zip(GOOD._replace(method=0)), NAME, LIMIT, "a") == DATA
    assert member(raw_zip(GOOD._replace(mode=0)), NAME, LIMIT, "a") == DATA
    assert member(raw_zip(GOOD), NAME, len(DATA), "a") == DATA
    assert member(raw_zip(GOOD._replace(data=b"")), NAME, 0, "a") == b""


#: zip64: 0xFFFFFFFF in the directory, and the size that holds in the extra field.
HUGE = struct.pack("<2HQ", 1, 8, 2**40)
ELSEWHERE = "its zip holds {}, not the one file records.jsonl.gz"
TRICKS: dict[str, tuple[bytes, str]] = {
    "slip": (raw_zip(GOOD._replace(name=b"../" + NAME.encode())), ELSEWHERE.format(
        "'../records.jsonl.gz'")),
    "absolute": (raw_zip(GOOD._replace(name=b"/etc/cron.d/x")), ELSEWHERE.format(
        "'/etc/cron.d/x'")),
    "back slash": (raw_zip(GOOD._replace(name=b"..\\" + NAME.encode())), ELSEWHERE.format(
        "'..\\\\records.jsonl.gz'")),
    "nul in the name": (raw_zip(GOOD._replace(name=NAME.encode() + b"\0x")), ELSEWHERE.format(
        "'records.jsonl.gz\\x00x'")),
    "two of the name": (raw_zip(GOOD, GOOD), ELSEWHERE.format(
        "'records.jsonl.gz', 'records.jsonl.gz'")),
    "another beside it": (raw_zip(GOOD, GOOD._replace(name=b"x")), ELSEWHERE.format(
        "'records.jsonl.gz', 'x'")),
    "nothing": (raw_zip(), ELSEWHERE.format("nothing")),
    "a folder": (raw_zip(GOOD._replace(name=b"records.jsonl.gz/")), ELSEWHERE.format(
        "'records.jsonl.gz/'")),
    "many": (raw_zip(*[GOOD] * 17), "its zip holds more than the one file records.jsonl.gz"),
    "a link": (raw_zip(GOOD._replace(data=b"/etc/passwd", mode=0o120777)),
               "records.jsonl.gz is no plain file"),
    "a device": (raw_zip(GOOD._replace(mode=0o020666)), "records.jsonl.gz is no plain file"),
    "a password": (raw_zip(GOOD._replace(flags=1)), "records.jsonl.gz has a password"),
    "strong encryption": (raw_zip(GOOD._replace(flags=0x41)), "records.jsonl.gz has a password"),
    "bzip2": (raw_zip(GOOD._replace(method=12)), "records.jsonl.gz is packed in an unusual way"),
    "lzma": (raw_zip(GOOD._replace(method=14)), "records.jsonl.gz is packed in an unusual way"),
    "unknown packing": (raw_zip(GOOD._replace(method=99)),
                        "records.jsonl.gz is packed in an unusual way"),
    "too long": (raw_zip(GOOD._replace(data=b"x" * (LIMIT + 1), method=0)),
                 "records.jsonl.gz says it is of 20001 bytes, 20000 are allowed"),
    "bomb": (raw_zip(GOOD._replace(data=bytes(50_000_000))),
             "records.jsonl.gz says it is of 50000000 bytes, 20000 are allowed"),
    "bomb of zip64": (raw_zip(GOOD._replace(size=2**32 - 1, extra=HUGE)),
                      f"records.jsonl.gz says it is of {2**40} bytes, 20000 are allowed"),
    "zip64 without its size": (raw_zip(GOOD._replace(size=2**32 - 1, extra=HUGE[:4])),
                               "not a sound zip: "),
    "says less": (raw_zip(GOOD._replace(size=100)),
                  "not a sound zip: Bad CRC-32 for file 'records.jsonl.gz'"),
    "says less, honest to that": (
        raw_zip(GOOD._replace(data=bytes(50_000_000), size=0, crc=0)),
        "",  # the truth of the first no bytes: nothing harmful is read
    ),
    "says more": (raw_zip(GOOD._replace(size=len(DATA) + 1)),
                  "records.jsonl.gz has 10240 bytes and says 10241"),
    "wrong checksum": (raw_zip(GOOD._replace(crc=1)),
                       "not a sound zip: Bad CRC-32 for file 'records.jsonl.gz'"),
    "another name inside": (raw_zip(GOOD._replace(local_name=b"x" * len(NAME))),
                            "not a sound zip: File name in directory 'records.jsonl.gz' and "),
    "cut": (raw_zip(GOOD)[:-30], "not a sound zip: File is not a zip file"),
    "no zip": (b"{}", "not a sound zip: File is not a zip file"),
    "empty": (b"", "not a sound zip: File is not a zip file"),
}  # fmt: skip


@pytest.mark.parametrize("what", TRICKS)
def test_every_other_zip_is_refused(what: str) -> None:
    """Attack 2: bombs, slips, links, lies and odd packings are refused with the reason."""
    archive, says = TRICKS[what]
    if not says:
        assert member(archive, NAME, LIMIT, "a") == b""
    else:
        assert rejected(archive).startswith(says)


def test_a_ratio_is_bounded() -> None:
    """Attack 2: within the limit, but packed as no honest file can be (records are gzip)."""
    archive = raw_zip(GOOD._replace(data=bytes(2**20)))
    assert rejected(archive, 2**21).startswith("records.jsonl.gz unpacks to 1048576 bytes from 1")


@pytest.mark.parametrize("size", [0, 100, LIMIT])
def test_a_bomb_takes_no_memory(size: int) -> None:
    """Attack 2: 50 MB of zeros behind a size that says little never exist in memory."""
    archive = raw_zip(GOOD._replace(data=bytes(50_000_000), size=size, packed_size=None))
    tracemalloc.start()
    try:
        rejected(archive)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 5_000_000


def test_a_directory_of_a_million_is_not_parsed() -> None:
    """Attack 2: entries are counted before the first is looked at."""
    archive = raw_zip(GOOD)
    start = archive.index(b"PK\1\2")
    entry = archive[start : archive.index(b"PK\5\6")]
    many = archive[:start] + entry * 200_000 + archive[-22:]
    tracemalloc.start()
    try:
        assert rejected(many).startswith("its zip holds more than the one file")
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


@settings(max_examples=400, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=6
    ),
    st.integers(0, 400) | st.none(),
    st.booleans(),
)  # fmt: skip
def test_broken_zips_are_refused_or_right(
    changes: list[tuple[int, int]], cut: int | None, stored: bool
) -> None:
    """Whatever bytes are changed or cut: the very content, or one refusal; never another error."""
    data = b"hello" * 10
    archive = bytearray(raw_zip(Member(NAME.encode(), data, method=0 if stored else 8)))
    for at, value in changes:
        archive[at % len(archive)] = value
    try:
        content = member(bytes(archive[:cut]), NAME, 1000, "a")
    except Rejected as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert len(content) <= 1000


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes(data: bytes) -> None:
    """Bytes that are no zip are refused."""
    with pytest.raises(Rejected):
        member(data, NAME, 1000, "a")

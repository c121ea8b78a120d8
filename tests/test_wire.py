"""The frames between parent and worker."""

from __future__ import annotations

import os

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tolcal.measure import wire


@given(st.lists(st.text(max_size=40), max_size=8), st.lists(st.integers(1, 30), max_size=40))
def test_frames_survive_any_cut(texts: list[str], cuts: list[int]) -> None:
    """However a stream is cut into pieces, the same values come out, each once and in order."""
    sent: list[wire.Message] = [wire.Refused(text) for text in texts]
    stream = b"".join(map(wire.frame, sent))
    frames, got = wire.Frames(), []
    for size in (*cuts, len(stream)):
        got += [wire.decode_message(raw) for raw in frames.feed(stream[:size])]
        stream = stream[size:]
    assert got == sent
    assert frames.buffer == b""


@given(st.binary(max_size=200))
def test_stray_bytes_are_refused_or_waited_for(data: bytes) -> None:
    """Whatever a kernel scribbles: values that decode or not, a refusal, never another error."""
    frames = wire.Frames()
    try:
        for raw in frames.feed(data):
            wire.decode_message(raw)
    except (ValueError, msgspec.DecodeError):
        pass
    assert len(frames.buffer) <= len(data)


def test_over_long_frame_is_refused() -> None:
    """A length over the cap is refused at once: nobody waits for gigabytes."""
    longest = wire.MAX_FRAME.to_bytes(4, "big")
    assert list(wire.Frames().feed(longest)) == []
    with pytest.raises(ValueError, match="a message of 16777217 bytes, at most 16777216"):
        list(wire.Frames().feed((wire.MAX_FRAME + 1).to_bytes(4, "big")))


def test_pipe_there_and_back() -> None:
    """What is written to a pipe is read from it; a cut frame is the end of it."""
    read, write = os.pipe()
    message = wire.Refused("x" * 1000)
    wire.write_frame(write, message)
    assert wire.decode_message(wire.read_frame(read)) == message
    os.write(write, wire.frame(message)[:-1])
    os.close(write)
    with pytest.raises(EOFError):
        wire.read_frame(read)
    os.close(read)

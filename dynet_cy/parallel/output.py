"""Forwards the output of workers to the launcher's stdout and stderr, and to files."""

from __future__ import annotations

import contextlib
import os
import select
import selectors
from typing import IO

__all__ = ["Output", "Pump", "Stream"]

# The beginning of a very long line in the output of crashed programs.
NOISE = b"Extension modules: "


class Output:
    """The launcher's stdout or stderr. Output that is not read yet is buffered here, so the launcher does not block."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.streams: list[Stream] = []  # the streams that write to it
        self._waiting = memoryview(b"")
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    def write(self, text: bytes = b"") -> bool:
        """Write as much as the descriptor accepts; returns whether that is everything."""
        if text:
            self._waiting = memoryview(bytes(self._waiting) + text)
        # Write pieces that a pipe accepts whole if it accepts anything.
        while self._waiting and self._poll.poll(0):
            try:
                written = os.write(self.descriptor, self._waiting[: select.PIPE_BUF])
            except BlockingIOError:
                break
            except OSError:
                self._waiting = memoryview(b"")
                raise
            self._waiting = self._waiting[written:]
        return not self._waiting


class Stream:
    """The output of a worker: each line with a prefix, such as the worker's rank.

    Args:
        source: the pipe from the worker.
        output: where it goes.
        prefix: before each line.
        log: a file that gets the same lines without the prefix.
    """

    def __init__(self, source: IO[bytes], output: Output, prefix: bytes, log: IO[bytes] | None = None) -> None:
        self.source = source
        self.output = output
        self.ended = False
        self.prefix = prefix
        self.log = log
        self.last = b""  # the last line without indent: it has the name of an error, even if its message has more lines
        self._rest: list[bytes] = []  # pieces of a line that has not ended
        self._returned = False  # whether the last line ended with "\r": a "\n" that follows belongs to it

    def forward(self) -> bool:
        """Pass on what has been read; returns whether all of it has been written."""
        try:
            data = os.read(self.source.fileno(), 1 << 16)
        except BlockingIOError:
            return True
        self.ended = not data
        if self.log is not None:
            self.log.write(data)
        text = data[1:] if self._returned and data.startswith(b"\n") else data
        self._returned = data.endswith(b"\r")
        begun, *lines = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._rest.append(begun)
        if lines or not data:
            lines.insert(0, b"".join(self._rest))
            self._rest = [lines.pop()]
            if not data and self._rest[0]:
                lines.append(self._rest[0])
        lines = [line for line in lines if not line.startswith(NOISE)]
        self.last = next((line for line in reversed(lines) if line.strip() and not line[:1].isspace()), self.last)
        return self.output.write(b"".join(self.prefix + line + b"\n" for line in lines))

    def close(self) -> None:
        """Close the pipe and the file."""
        self.source.close()
        if self.log is not None:
            self.log.close()


class Pump:
    """Forwards the output of workers while the launcher waits in `pass_on`.

    Args:
        wake: a descriptor that becomes readable when the launcher has to do something else.

    Attributes:
        failure: why output could not be forwarded; "" if all was.
    """

    def __init__(self, wake: int) -> None:
        self.failure = ""
        self.streams: list[Stream] = []
        self._wake = wake
        self._selector = selectors.PollSelector()  # it accepts regular files too
        self._selector.register(wake, selectors.EVENT_READ)

    def add(self, stream: Stream) -> None:
        """Forward this stream, too."""
        os.set_blocking(stream.source.fileno(), False)
        stream.output.streams.append(stream)
        self.streams.append(stream)
        self._selector.register(stream.source, selectors.EVENT_READ, stream)

    def pass_on(self, seconds: float) -> None:
        """Wait at most so long for something to happen, and forward what has been written."""
        for key, _ in self._selector.select(seconds):
            if key.fd == self._wake:
                with contextlib.suppress(BlockingIOError):
                    os.read(key.fd, 1 << 10)
                continue
            is_output = isinstance(key.data, Output)
            output = key.data if is_output else key.data.output
            try:
                written = output.write() if is_output else key.data.forward()
            except OSError as error:  # the reader of the output has ended, or a disk is full
                self.failure = self.failure or f"cannot write what workers write: {error}"
                written = True
                if not is_output:
                    key.data.ended = True
            self._watch(output, written)

    def _watch(self, output: Output, written: bool) -> None:
        """Read data for an output, or wait if the output accepts no more at the moment."""
        known = self._selector.get_map()
        for stream in output.streams:
            reads = stream.source.fileno() in known
            if reads and (stream.ended or not written):
                self._selector.unregister(stream.source)
            elif not reads and written and not stream.ended:
                self._selector.register(stream.source, selectors.EVENT_READ, stream)
        if written and output.descriptor in known:
            self._selector.unregister(output.descriptor)
        elif not written and output.descriptor not in known:
            self._selector.register(output.descriptor, selectors.EVENT_WRITE, output)

    @property
    def open(self) -> int:
        """The number of streams that have not ended, or still have output to be written."""
        return len(self._selector.get_map()) - 1

    @property
    def is_blocked(self) -> bool:
        """Whether output that has been read is waiting to be written."""
        return any(isinstance(key.data, Output) for key in self._selector.get_map().values())

    def close(self) -> None:
        """Close the streams."""
        self._selector.close()
        for stream in self.streams:
            stream.close()

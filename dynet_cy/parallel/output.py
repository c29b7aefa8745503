"""What workers write, on its way to the launcher's stdout and stderr, and to files."""

from __future__ import annotations

import contextlib
import os
import select
import selectors
from typing import IO

__all__ = ["Output", "Pump", "Stream"]

# What crashed programs list at great length.
NOISE = b"Extension modules: "


class Output:
    """The launcher's stdout or stderr. Output that is not read yet is buffered here, so the launcher does not block."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.streams: list[Stream] = []  # what goes there
        self._waiting = memoryview(b"")
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    def write(self, text: bytes = b"") -> bool:
        """Write what there is room for; whether that is all."""
        if text:
            self._waiting = memoryview(bytes(self._waiting) + text)
        # As much as a pipe takes at once if it takes anything.
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
        log: a file for the same without the prefix.
    """

    def __init__(self, source: IO[bytes], output: Output, prefix: bytes, log: IO[bytes] | None = None) -> None:
        self.source = source
        self.output = output
        self.ended = False
        self.prefix = prefix
        self.log = log
        self.last = b""  # line that is not indented: the name of an error, where its message goes on below
        self._rest: list[bytes] = []  # pieces of a line that has not ended
        self._returned = False  # whether the last line has ended with "\r": if "\n" follows, it belongs to that

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
    """Passes on what workers write, as long as their launcher waits in it.

    Args:
        wake: a descriptor from which something can be read when the launcher should look up.

    Attributes:
        failure: why something could not be passed on; "" so far.
    """

    def __init__(self, wake: int) -> None:
        self.failure = ""
        self.streams: list[Stream] = []
        self._wake = wake
        self._selector = selectors.PollSelector()  # takes regular files too
        self._selector.register(wake, selectors.EVENT_READ)

    def add(self, stream: Stream) -> None:
        """Pass on what comes from there, too."""
        os.set_blocking(stream.source.fileno(), False)
        stream.output.streams.append(stream)
        self.streams.append(stream)
        self._selector.register(stream.source, selectors.EVENT_READ, stream)

    def pass_on(self, seconds: float) -> None:
        """Wait for something to happen, and pass on what has been written."""
        for key, _ in self._selector.select(seconds):
            if key.fd == self._wake:
                with contextlib.suppress(BlockingIOError):
                    os.read(key.fd, 1 << 10)
                continue
            is_output = isinstance(key.data, Output)
            output = key.data if is_output else key.data.output
            try:
                written = output.write() if is_output else key.data.forward()
            except OSError as error:  # the reader has gone away, or a disk is full
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
        """How many streams have not ended, or have not been written yet."""
        return len(self._selector.get_map()) - 1

    @property
    def is_blocked(self) -> bool:
        """Whether data that have been read are waiting to be written."""
        return any(isinstance(key.data, Output) for key in self._selector.get_map().values())

    def close(self) -> None:
        """Close what has been passed on."""
        self._selector.close()
        for stream in self.streams:
            stream.close()

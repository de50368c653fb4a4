"""Messages between the API process and the engine process, and how they cross a socket (D10).

A frame is 4 bytes of length, most significant first, then that many bytes: one version byte and a
msgspec array that begins with the message's name. Both processes come from one build; the version
byte only catches the case where they do not. In one process `client` and `worker` use the same
messages without bytes.
"""

from __future__ import annotations

import contextlib
import select
import socket
from typing import Generic, TypeVar

import msgspec

from deodar.engine.hooks import Injection
from deodar.errors import RequestError, WireError
from deodar.types import EngineInfo, EngineStats, GenerateRequest, TokenEvent

VERSION = 1
MAX_FRAME_BYTES = 64 * 2**20


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all messages."""


class Submit(_Message, frozen=True):
    """Run this request."""

    request: GenerateRequest


class Abort(_Message, frozen=True):
    """End this request; unknown ids do nothing."""

    request_id: str


class Flush(_Message, frozen=True):
    """Forget everything that could be reused; answered by `Done`."""

    call: int


class Inject(_Message, frozen=True):
    """A fault or script of the test hooks; answered by `Done`."""

    call: int
    what: Injection


class Stop(_Message, frozen=True):
    """End the engine after the current step."""


class Ready(_Message, frozen=True):
    """The engine is loaded and warm; the first message."""

    info: EngineInfo


class Failed(_Message, frozen=True):
    """Instead of `Ready`: the model cannot be served, and why."""

    text: str


class Refusal(_Message, frozen=True):
    """A RequestError as a value."""

    text: str
    param: str | None
    status: int
    code: str | None

    @classmethod
    def of(cls, error: RequestError) -> Refusal:
        return cls(str(error), error.param, error.status, error.code)

    def error(self) -> RequestError:
        return RequestError(self.text, param=self.param, status=self.status, code=self.code)


class Refused(_Message, frozen=True):
    """A submitted request that cannot be honoured; nothing follows for it."""

    request_id: str
    refusal: Refusal


class Events(_Message, frozen=True):
    """News of requests, in order."""

    events: tuple[TokenEvent, ...]


class Done(_Message, frozen=True):
    """The answer to the call of this number."""

    call: int
    refusal: Refusal | None = None


class Beat(_Message, frozen=True):
    """Sent several times a second, by another thread than the step loop's."""

    stats: EngineStats


ToEngine = Submit | Abort | Flush | Inject | Stop
FromEngine = Ready | Failed | Refused | Events | Done | Beat
M = TypeVar("M")

_encoder = msgspec.msgpack.Encoder()


def encode(message: ToEngine | FromEngine) -> bytes:
    """A whole frame; WireError if it is too large."""
    body = _encoder.encode(message)
    if len(body) >= MAX_FRAME_BYTES:
        raise WireError(f"a message has {len(body)} bytes, limit is {MAX_FRAME_BYTES - 1}")
    return (len(body) + 1).to_bytes(4, "big") + bytes((VERSION,)) + body


class Reader(Generic[M]):
    """Cuts bytes into frames and decodes them; bytes may come in any portions."""

    def __init__(self, kind: object) -> None:
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(kind)  # type: ignore[arg-type]
        self._held = bytearray()

    def push(self, data: bytes) -> None:
        """More bytes."""
        self._held += data

    def pop(self) -> M | None:
        """The next message, None until it is complete; WireError if it cannot be one."""
        if len(self._held) < 4:
            return None
        size = int.from_bytes(self._held[:4], "big")
        if not 1 < size <= MAX_FRAME_BYTES:
            raise WireError(f"a frame has {size} bytes, it must be from 2 to {MAX_FRAME_BYTES}")
        if len(self._held) > 4 and self._held[4] != VERSION:
            raise WireError(f"the peer speaks version {self._held[4]}, this is {VERSION}")
        if len(self._held) < 4 + size:
            return None
        body = bytes(self._held[5 : 4 + size])
        del self._held[: 4 + size]
        try:
            return self._decoder.decode(body)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise WireError(f"a frame is no message: {error}") from None


class Channel(Generic[M]):
    """Messages over a connected stream socket: one thread sends, one receives."""

    def __init__(self, connection: socket.socket, kind: object) -> None:
        self._socket = connection
        self._reader: Reader[M] = Reader(kind)
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)

    def send(self, message: ToEngine | FromEngine) -> None:
        """Block until it is handed over; OSError if the peer is gone."""
        self._socket.sendall(encode(message))

    def receive(self, timeout_s: float | None = None) -> M | None:
        """The next message, None after `timeout_s`; EOFError at the end, WireError for rubbish."""
        while True:
            message = self._reader.pop()
            if message is not None:
                return message
            if not self._poll.poll(None if timeout_s is None else 1000 * timeout_s):
                return None
            try:
                data = self._socket.recv(1 << 18)
            except OSError:
                data = b""
            if not data:
                raise EOFError
            self._reader.push(data)

    def close(self) -> None:
        """Close the socket; the peer sees the end."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

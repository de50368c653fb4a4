"""uvicorn in a thread, for tests that need real HTTP, and settings of a small server."""

import asyncio
import socket
import threading

import uvicorn

from deodar.server.settings import ServerSettings

SETTINGS = ServerSettings(
    model_names=("seedling", "alias"), context=2000, max_body_bytes=100_000, keep_alive_s=0.3
)


class Server(threading.Thread):
    """uvicorn in a thread, on a free port of loopback."""

    def __init__(self, app):
        super().__init__(daemon=True)
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False))
        self._server.install_signal_handlers = lambda: None

    def run(self):
        asyncio.run(self._server.serve(sockets=[self._socket]))

    def start(self):
        super().start()
        while not self._server.started:
            assert self.is_alive()
            threading.Event().wait(0.01)

    def stop(self):
        self._server.should_exit = True
        self._server.force_exit = True
        self.join(10)
        assert not self.is_alive()

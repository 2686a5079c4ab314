"""An object store on loopback: moto's S3 server with injected faults and a count of sent bytes."""

import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import fsspec
import pytest
from botocore.loaders import JSONFileLoader
from werkzeug.serving import WSGIRequestHandler, make_server

SECRET = "dGhlIHNlY3JldCBrZXk"
BUCKET = "bucket"


class _Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_request(self, *args: object) -> None:
        pass


class StoreServer:
    """The object store's server, which runs in a thread of the tests.

    Attributes:
      fault: called with method and path of a request; if it returns a status and a code, they are
        the answer.
      sent: path -> number of bytes sent.
      log: method and path of each request that changed something.
    """

    def __init__(self) -> None:
        from moto.server import DomainDispatcherApplication, create_backend_app  # takes a second

        # Otherwise each client reads botocore's 2 MB about all services.
        load = functools.cache(functools.partial(JSONFileLoader._load_file, None))
        JSONFileLoader._load_file = lambda self, *args: load(*args)
        self._app = DomainDispatcherApplication(create_backend_app)
        self._server = make_server(
            "127.0.0.1", 0, self._answer, threaded=True, request_handler=_Quiet
        )
        self.fault: Callable[[str, str], tuple[str, str] | None] = lambda method, path: None
        self.sent: Counter[str] = Counter()
        self.log: list[tuple[str, str]] = []
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def environment(self, cache: object) -> dict[str, str]:
        """Returns the environment of a program that keeps its mirrors in `cache`."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._server.server_port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "T2TP_CACHE": str(cache),
        }

    def files(self) -> fsspec.AbstractFileSystem:
        """Returns a client of the store."""
        return fsspec.filesystem(
            "s3",
            key="key",
            secret=SECRET,
            endpoint_url=f"http://127.0.0.1:{self._server.server_port}",
            use_listings_cache=False,
            skip_instance_cache=True,
        )

    def clear(self) -> None:
        """Removes faults and objects, and creates an empty bucket."""
        self.fault = lambda method, path: None
        files = self.files()
        if files.exists(BUCKET):
            files.rm(BUCKET, recursive=True)
        files.mkdir(BUCKET)
        self.sent.clear()
        self.log.clear()

    def close(self) -> None:
        self._server.shutdown()

    def _answer(self, environ: dict, start_response: Callable) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        fault = self.fault(method, path)
        if fault is not None:
            status, code = fault
            body = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start_response(status, [("Content-Length", str(len(body)))])
            return [] if method == "HEAD" else [body]
        content = list(self._app(environ, start_response))
        if method == "GET":
            self.sent[path] += sum(map(len, content))
        elif method in ("PUT", "DELETE", "POST"):
            self.log.append((method, path))
        return content


@pytest.fixture(scope="session")
def _server() -> Iterator[StoreServer]:
    server = StoreServer()
    yield server
    server.close()


@pytest.fixture
def server(_server: StoreServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoreServer:
    """Gives the server an empty bucket; mirrors of this process are in `tmp_path/cache`."""
    _server.clear()
    for name, value in _server.environment(tmp_path / "cache").items():
        monkeypatch.setenv(name, value)
    return _server

"""A server that implements what downloads need of the Hub's protocol."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"
# The directory of a model, or the status and error code that requests for it get.
Models = dict[str, Path | tuple[int, str]]


class Handler(BaseHTTPRequestHandler):
    """Serves directories as models.

    Attributes:
      models: name -> model.
      requests: (method, path, range) of each request.
      tokens: authorization headers of the requests.
    """

    models: Models
    requests: list[tuple[str, str, str | None]]
    tokens: set[str | None]

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        path, wanted = self.path.partition("?")[0], self.headers.get("Range")
        self.requests.append((self.command, path, wanted))
        self.tokens.add(self.headers.get("Authorization"))
        name, kind, revision, file = re.match(
            r"/(?:api/models/)?([^/]+/[^/]+)/(revision|tree|resolve)/([^/]+)/?(.*)", path
        ).groups()
        model = self.models.get(name, (404, "RepoNotFound"))
        if isinstance(model, tuple):
            self._send(model[0], {"X-Error-Code": model[1]})
        elif revision not in ("main", COMMIT):
            self._send(404, {"X-Error-Code": "RevisionNotFound"})
        elif kind == "revision":
            self._send(200, {}, json.dumps({"id": name, "sha": COMMIT, "siblings": []}).encode())
        elif kind == "tree":
            files = {str(each.relative_to(model)): each for each in model.rglob("*.*")}
            entries = [
                {"type": "file", "path": path, "size": each.stat().st_size, "oid": _etag(each)}
                for path, each in files.items()
            ]
            self._send(200, {}, json.dumps(entries).encode())
        else:
            contents = (model / file).read_bytes()
            headers = {"ETag": f'"{_etag(model / file)}"', "X-Repo-Commit": COMMIT}
            begin = int(wanted.removeprefix("bytes=").split("-")[0]) if wanted else 0
            # The first answer for a large file stops in the middle.
            end = len(contents) // (2 if not wanted and len(contents) > 30_000 else 1)
            length = len(contents) - begin
            self._send(206 if wanted else 200, headers, contents[begin:end], length)

    do_HEAD = do_GET  # noqa: N815

    def _send(self, status, headers, body=b"", length=None):
        self.send_response(status)
        all_headers = {**headers, "Content-Length": str(len(body) if length is None else length)}
        for name, value in all_headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


@contextmanager
def serving(models: Models) -> Iterator[tuple[str, type[Handler]]]:
    """Serves models; yields the address, and the handler that records the requests."""
    handler = type("Served", (Handler,), {"models": models, "requests": [], "tokens": set()})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", handler
        server.shutdown()


def _etag(file: Path) -> str:
    return hashlib.sha1(file.read_bytes()).hexdigest()

"""A server that speaks the part of the Hub's protocol which downloads use."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class HubServer(ThreadingHTTPServer):
    """Serves directories as models.

    Attributes:
      models: directory of each model; a number is the status that requests for it get.
      requests: (method, path, range) of each request.
      tokens: authorization headers that came.
    """

    def __init__(self, models: dict[str, Path | tuple[int, str]]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.models, self.requests, self.tokens = models, [], set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def downloads(self) -> list[str]:
        """The names of the files that were downloaded."""
        return [
            path.rpartition("/")[2]
            for verb, path, _ in self.requests
            if verb == "GET" and "/resolve/" in path
        ]


@contextmanager
def serving(models: dict[str, Path | tuple[int, str]]) -> Iterator[HubServer]:
    with HubServer(models) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    server: HubServer

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        self.server.requests.append((self.command, path, self.headers.get("Range")))
        self.server.tokens.add(self.headers.get("Authorization"))
        match = re.match(
            r"/(?:api/models/)?([^/]+/[^/]+)/(revision|tree|resolve)/([^/]+)/?(.*)", path
        )
        model = self.server.models.get(match[1], (404, "RepoNotFound")) if match else (404, "")
        if isinstance(model, tuple):
            self._send(model[0], {"X-Error-Code": model[1]}, b'{"error": "no"}')
        elif match[3] not in ("main", COMMIT):
            self._send(404, {"X-Error-Code": "RevisionNotFound"})
        elif match[2] == "revision":
            self._json({"id": match[1], "sha": COMMIT, "siblings": []})
        elif match[2] == "tree":
            files = [each for each in sorted(model.rglob("*")) if each.is_file()]
            self._json([self._entry(each, model) for each in files])
        elif not (model / match[4]).is_file():
            self._send(404, {"X-Error-Code": "EntryNotFound"})
        else:
            self._file((model / match[4]).read_bytes())

    def _entry(self, file: Path, model: Path) -> dict[str, object]:
        name, contents = str(file.relative_to(model)), file.read_bytes()
        return {"type": "file", "path": name, "size": len(contents), "oid": _etag(contents)}

    def _file(self, contents: bytes) -> None:
        headers = {
            "ETag": f'"{_etag(contents)}"',
            "X-Repo-Commit": COMMIT,
            "Accept-Ranges": "bytes",
        }
        wanted = re.match(r"bytes=(\d+)-", self.headers.get("Range") or "")
        begin = int(wanted[1]) if wanted else 0
        if wanted:
            headers["Content-Range"] = f"bytes {begin}-{len(contents) - 1}/{len(contents)}"
        # The first answer of a large file breaks off in the middle.
        is_cut = self.command == "GET" and not wanted and len(contents) > 30_000
        part = contents[begin : len(contents) // 2 if is_cut else None]
        self._send(206 if wanted else 200, headers, part, len(contents) - begin)
        if is_cut:
            self.wfile.flush()
            self.connection.close()

    def _json(self, value: object) -> None:
        self._send(200, {"Content-Type": "application/json"}, json.dumps(value).encode())

    def _send(
        self, status: int, headers: dict[str, str], body: bytes = b"", length: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def _etag(contents: bytes) -> str:
    return hashlib.sha1(contents).hexdigest()

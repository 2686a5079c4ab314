"""The objects below an address. Requests are retried; an error's message is one sentence."""

import asyncio
import contextlib
import logging
import os
import random
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from t2tp.atomic_file import unfinished_path

_ADDRESS = re.compile(r"(s3|gs|az)://([^/@:?#]+(?:/[^/?#.][^/?#]*)*)/*")
# Addresses of stores, mistyped, or of other services.
_LIKE_ADDRESS = re.compile(r"\s*([a-z][a-z0-9+.-]*://|(s3[an]?|gc?s|az|abfss?|wasbs?):)", re.I)
_KEY_OF_SECRET = re.compile(
    r"(\w*(?:password|passwd|pwd|secret|token|key))\s*=\s*('(?:[^'\\]|\\.)*'|[^\s&,;]*)", re.I
)
# Seconds to wait before each further attempt. They are multiplied by a random factor, because many
# processes may retry. With gs and az there are further attempts only after a timeout, because their
# packages retry after other errors by themselves.
WAITS = (0.5, 1.0, 2.0, 4.0, 8.0)
_TIMEOUTS = {"connect_timeout": 10, "read_timeout": 30, "retries": {"max_attempts": 0}}
# Maps a scheme to fsspec's package, t2tp's extra that installs the package, and options that limit
# the time of a request.
_PACKAGES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "s3": ("s3fs", "s3", {"config_kwargs": _TIMEOUTS}),
    "gs": ("gcsfs", "gcs", {"requests_timeout": 30}),
    "az": ("adlfs", "azure", {"connection_timeout": 10, "read_timeout": 30}),
}
# Bytes of a range request, and number of simultaneous range requests.
_PIECE, _PIECES = 8 << 20, 8
# Messages about a missing bucket, in contrast to a missing object.
_NO_BUCKET = re.compile(r"specified (bucket|container)|NoSuchBucket|No such container")
# Names or messages of errors about credentials.
_REFUSAL = re.compile(r"\w*(Permission|Credential|Auth)|\w+: Forbidden")
# Methods that report a missing file only if the bucket is missing.
_IN_BUCKET = ("find", "ls", "put_file", "pipe_file")
# Keys in fsspec's descriptions whose value identifies an object's content.
_VERSIONS = ("ETag", "etag", "LastModified", "last_modified", "mtime")
_ADVICE = "check the credentials in the environment"


class StoreError(OSError):
    """An object store rejects a request, or does not answer; `str()` is a sentence."""


def is_address(path: object) -> bool:
    """Whether a path is an address in an object store."""
    return isinstance(path, str) and path.startswith(tuple(f"{scheme}://" for scheme in _PACKAGES))


def split(address: str) -> tuple[str, str]:
    """Splits an address into its scheme and `bucket/name`.

    Raises:
      ValueError: the text is not an address, or it contains credentials.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise ValueError(
            f"{without_secrets(address)}: expected SCHEME://BUCKET/NAME, without"
            " credentials, which the store's package finds in its environment"
        )
    return match[1], match[2]


def looks_like_address(path: str) -> bool:
    """Whether a path is an address of any kind, even if mistyped, such as `s3:/bucket/run`."""
    return _LIKE_ADDRESS.match(path) is not None


def without_secrets(text: str) -> str:
    """Removes credentials for messages.

    The text is an address in a store, an address of a database, as a URL or in libpq's form
    `host=... password=...`, or a text that contains such an address.
    """
    text = _KEY_OF_SECRET.sub(r"\1=***", text)
    text = re.sub(r"(//|^\s*[\w+.-]+:/*).*@", r"\1***@", text, flags=re.DOTALL)
    return re.sub(r"\?.*", "?***", text, flags=re.DOTALL)


class Store:
    """The objects below an address, by their names relative to it; "" is the address itself.

    Methods raise FileNotFoundError if an object is missing, and StoreError if the store rejects a
    request or does not answer.
    """

    def __init__(self, address: str) -> None:
        """Creates the client of the address `SCHEME://BUCKET/NAME`; sends no request.

        Raises:
          ValueError: the address is invalid, or fsspec's package for it is not installed.
        """
        scheme, self._root = split(address)
        self.address = f"{scheme}://{self._root}"
        package, extra, limits = _PACKAGES[scheme]
        options = {**limits, "use_listings_cache": False, "skip_instance_cache": True}
        try:
            import fsspec  # Imported here, because most runs are local.

            self._fs = fsspec.filesystem(scheme, **options)
        except ImportError as error:
            raise ValueError(f"{address} needs {package}: pip install -e '.[{extra}]'") from error
        except ValueError as error:
            raise ValueError(f"{address}: {error}; {_ADVICE}") from error
        self._fs.retries = 1  # s3fs would retry inside each of our attempts.
        self._client_repeats = scheme != "s3"
        logging.getLogger(package).setLevel(logging.CRITICAL)  # gcsfs logs errors that it raises.

    def list(self) -> dict[str, tuple[int, str]]:
        """Returns each object's size and an id of its content, by name."""
        found = self._attempt("find", "", detail=True)
        if not found:  # Listing the bucket raises an error if it is missing.
            self._attempt("ls", "", at=self._root.partition("/")[0])
        elif isinstance(found, list):  # adlfs returns only names.
            found = {key: self._attempt("info", "", at=key) for key in found}
        return {
            key.removeprefix(self._root).strip("/"): (info["size"], _version(info))
            for key, info in found.items()
            if info["type"] == "file" and not key.endswith("/")
        }

    def get(self, name: str, path: Path) -> None:
        """Downloads an object atomically."""
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = unfinished_path(path)
        try:
            self._attempt("get_file", name, str(unfinished))
            os.replace(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)

    def put(self, path: Path, name: str) -> str:
        """Uploads a file; returns an id of its content."""
        self._attempt("put_file", name, f"{self._root}/{name}".rstrip("/"), at=str(path))
        return _version(self._attempt("info", name))

    def read(self, name: str) -> bytes:
        """Returns the content of a small object."""
        return self._attempt("cat_file", name)

    def read_ranges(
        self, name: str, ranges: Sequence[tuple[int, int]], take: Callable[[int, bytes], object]
    ) -> None:
        """Reads byte ranges (begin, end); calls `take` with the begin and content of each piece."""
        begins = [at for begin, end in ranges for at in range(begin, end, _PIECE)]
        ends = [min(at + _PIECE, end) for begin, end in ranges for at in range(begin, end, _PIECE)]
        for first in range(0, len(begins), _PIECES):
            some = slice(first, first + _PIECES)
            where = [f"{self._root}/{name}"] * len(begins[some])
            contents = self._attempt(
                "cat_ranges", name, begins[some], ends[some], at=where, on_error="raise"
            )
            for begin, content in zip(begins[some], contents, strict=True):
                take(begin, content)

    def write(self, name: str, content: bytes, *, only_new: bool = False) -> bool:
        """Writes a small object. With `only_new`, returns False if the object exists."""
        try:
            self._attempt("pipe_file", name, content, **({"mode": "create"} if only_new else {}))
        except FileExistsError:
            return False
        return True

    def delete(self, name: str) -> None:
        """Deletes an object, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self._attempt("rm_file", name)

    def abort_uploads(self) -> None:
        """Deletes the parts of interrupted uploads, which s3 keeps, and bills, until then."""
        if not self.address.startswith("s3:"):
            return
        bucket, _, root = self._root.partition("/")
        where = {"at": "list_multipart_uploads", "Bucket": bucket, "Prefix": f"{root}/"}
        for upload in self._attempt("call_s3", "", **where).get("Uploads", ()):
            end = {"at": "abort_multipart_upload", "Bucket": bucket}
            end |= {"Key": upload["Key"], "UploadId": upload["UploadId"]}
            self._attempt("call_s3", "", **end)

    def _attempt(
        self, method: str, name: str, *arguments: Any, at: Any = None, **options: Any
    ) -> Any:
        """Calls a method of fsspec, and repeats it after errors that may be temporary.

        The method's first argument is the path of object `name`, unless `at` replaces it.
        """
        path = f"{self._root}/{name}".rstrip("/")
        verb = "written" if method in ("put_file", "pipe_file", "rm_file") else "read"
        begin = f"{self.address}/{name}".rstrip("/") + f" cannot be {verb}"
        for wait in (*WAITS, None):
            try:
                return getattr(self._fs, method)(at or path, *arguments, **options)
            except Exception as error:  # The packages' own errors have no common base class.
                is_missing = isinstance(error, FileNotFoundError)
                # gcsfs reports a missing bucket as a missing file, but a local file may be missing
                # too.
                is_local = method == "put_file" and getattr(error, "filename", None) == at
                is_remote = is_missing and method in _IN_BUCKET and not is_local
                if _NO_BUCKET.search(str(error)) or is_remote:
                    raise StoreError(f"{begin}: there is no such bucket") from error
                if is_missing or isinstance(error, FileExistsError):
                    raise
                reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
                if _is_refusal(error):
                    raise StoreError(
                        f"{begin}, as access is refused ({reason}): {_ADVICE}"
                    ) from error
                is_timeout = isinstance(error, (TimeoutError, asyncio.TimeoutError))
                if wait is None or (self._client_repeats and not is_timeout):
                    raise StoreError(f"{begin}: {reason}") from error
                time.sleep(wait * random.uniform(0.5, 1.5))


def _is_refusal(error: Exception) -> bool:
    """Whether an error is about credentials; each package raises different errors."""
    status = getattr(error, "status_code", getattr(error, "code", None))
    return status in (401, 403) or bool(_REFUSAL.match(f"{type(error).__name__}: {error}"))


def _version(info: dict[str, Any]) -> str:
    return str(next((info[key] for key in _VERSIONS if info.get(key)), ""))

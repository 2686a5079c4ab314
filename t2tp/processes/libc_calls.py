"""Replaces functions of libc that TensorFlow's libraries call.

TensorFlow's server listens at all addresses, and TensorFlow replaces the handler of SIGTERM. There
are no options to change that. But a shared library calls libc through a table of addresses, so the
calls can be redirected. The dynamic linker fills this table:

    libtensorflow_cc.so    call listen  ->  table entry of `listen`  ->  listen in libc

`replaced` writes another address into the entry, so that only TensorFlow's calls are redirected.
The tables are found as the dynamic linker finds them (man 5 elf, man 3 dl_iterate_phdr).
"""

import contextlib
import ctypes
import fcntl
import mmap
import os
import signal
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from t2tp.processes.process_spec import LOST_EXIT_CODE
from t2tp.processes.signals import sigint_ends

libc = ctypes.CDLL(None, use_errno=True)
_F_SETSIG = 10  # fcntl.h; Python's fcntl lacks it.

_PT_DYNAMIC = 2
_DT_PLTRELSZ, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_JMPREL = 2, 5, 6, 10, 23
_PROGRAM_HEADER = np.dtype(
    [("type", "u4"), ("flags", "u4"), ("offset", "u8"), ("address", "u8")]
    + [(name, "u8") for name in ("physical", "file_size", "size", "align")]
)
_DYNAMIC = np.dtype([("tag", "i8"), ("value", "u8")])
_RELOCATION = np.dtype([("offset", "u8"), ("type", "u4"), ("symbol", "u4"), ("addend", "i8")])
_SYMBOL = np.dtype([("name", "u4"), ("rest", "V20")])


class _LoadedObject(ctypes.Structure):
    """The beginning of `struct dl_phdr_info`."""

    _fields_ = [
        ("base", ctypes.c_size_t),
        ("path", ctypes.c_char_p),
        ("headers", ctypes.c_size_t),
        ("num_headers", ctypes.c_uint16),
    ]


_VISIT = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(_LoadedObject), ctypes.c_size_t, ctypes.c_void_p
)


@contextlib.contextmanager
def replaced(name: str, function: Any) -> Iterator[None]:
    """Redirects TensorFlow's calls of a libc function inside the context.

    The replacement, an instance of a `ctypes.CFUNCTYPE`, runs in the thread that makes the call,
    and acquires the GIL there.
    """
    address = ctypes.cast(function, ctypes.c_void_p).value or 0
    entries = [ctypes.c_size_t.from_address(each) for each in _table_entries(name.encode())]
    previous = [entry.value for entry in entries]
    for entry in entries:
        # The linker may have made the table read-only.
        page = ctypes.addressof(entry) // mmap.PAGESIZE * mmap.PAGESIZE
        libc.mprotect(ctypes.c_void_p(page), mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE)
        entry.value = address
    try:
        yield
    finally:
        for entry, value in zip(entries, previous, strict=True):
            entry.value = value


@contextlib.contextmanager
def sigterm_left_alone() -> Iterator[None]:
    """Keeps the current handler of SIGTERM while TensorFlow starts.

    The handler of TensorFlow's coordination service only records the signal, so SIGTERM would not
    end the process.
    """

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    def set_handler(number: int, handler: int | None) -> int | None:
        if number == signal.SIGTERM:
            return None
        libc.signal.restype = ctypes.c_void_p
        return libc.signal(number, ctypes.c_void_p(handler))

    with replaced("signal", set_handler):
        yield


@contextlib.contextmanager
def exit_if_broken(descriptors: Sequence[int]) -> Iterator[None]:
    """Exits with `LOST_EXIT_CODE` if another process closes a connection inside the context.

    This also works while TensorFlow's start keeps all Python threads waiting: the kernel sends
    SIGQUIT, and its handler is libc's `_exit`, whose argument, the signal's number, is the code.
    The other side of a connection must send nothing. SIGINT ends the process at once, too.
    """
    assert signal.SIGQUIT == LOST_EXIT_CODE
    libc.signal.restype = ctypes.c_void_p
    previous = libc.signal(signal.SIGQUIT, ctypes.cast(libc._exit, ctypes.c_void_p))
    for descriptor in descriptors:
        fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(descriptor, _F_SETSIG, signal.SIGQUIT)
    _set_async(descriptors, os.O_ASYNC)
    try:
        with sigint_ends():
            yield
    finally:
        _set_async(descriptors, 0)
        libc.signal(signal.SIGQUIT, ctypes.c_void_p(previous))


def _set_async(descriptors: Sequence[int], flag: int) -> None:
    for descriptor in descriptors:
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~os.O_ASYNC
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | flag)


def _table_entries(name: bytes) -> list[int]:
    """Returns the addresses of a function's table entries in TensorFlow's libraries."""
    entries: list[int] = []

    def visit(info: Any, size: int, data: Any) -> int:
        loaded = info.contents
        if b"tensorflow" in (loaded.path or b""):
            headers = _array(loaded.headers, loaded.num_headers, _PROGRAM_HEADER)
            for header in headers[headers["type"] == _PT_DYNAMIC]:
                start = loaded.base + int(header["address"])
                dynamic = _array(start, int(header["size"]) // _DYNAMIC.itemsize, _DYNAMIC)
                entries.extend(_entries_of(loaded.base, dict(dynamic.tolist()), name))
        return 0

    libc.dl_iterate_phdr(_VISIT(visit), None)
    return entries


def _entries_of(base: int, dynamic: dict[int, int], name: bytes) -> list[int]:
    """Returns the addresses of a function's table entries in one library."""
    if _DT_JMPREL not in dynamic:
        return []
    count = dynamic[_DT_PLTRELSZ] // _RELOCATION.itemsize
    relocations = _array(dynamic[_DT_JMPREL], count, _RELOCATION)
    symbols = _array(dynamic[_DT_SYMTAB], int(relocations["symbol"].max()) + 1, _SYMBOL)
    names = symbols["name"][relocations["symbol"]].astype(np.int64)
    text = _array(dynamic[_DT_STRTAB], dynamic[_DT_STRSZ], np.dtype("u1"))
    wanted = np.frombuffer(name + b"\0", np.uint8)
    places = np.minimum(names[:, None] + np.arange(len(wanted)), len(text) - 1)
    found = relocations[(text[places] == wanted).all(axis=1)]
    return [base + int(offset) for offset in found["offset"]]


def _array(address: int, count: int, dtype: np.dtype) -> np.ndarray:
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return np.frombuffer(memoryview(memory), dtype)

"""The gate of a server: who says the token in time passes with all that it said, nobody else disturbs it."""

import socket
import struct
import threading
from types import SimpleNamespace

import pytest

from hetero_tvm.search.measure.gate import LONGEST_NAME, MOST_WAITING, Gate

CODES = SimpleNamespace(RPC_MAGIC=0xFF271, RPC_CODE_MISMATCH=0xFF273)


def hello(name: bytes, magic: int = CODES.RPC_MAGIC, length: int | None = None) -> bytes:
    return struct.pack("<ii", magic, len(name) if length is None else length) + name


@pytest.fixture
def gate():
    listening = socket.create_server(("127.0.0.1", 0))
    made = Gate(listening, "secret", CODES, seconds=600)
    made.address = listening.getsockname()
    yield made
    made.close()
    listening.close()


def test_who_knows_the_token_passes_and_nothing_is_read(gate):
    client = socket.create_connection(gate.address)
    text = hello(b"client:secret -timeout=3")
    for part in (text[:3], text[3:9], text[9:]):  # as slowly as it comes
        client.sendall(part)
    connection, address = gate.accept()
    assert address == client.getsockname()
    assert connection.recv(len(text), socket.MSG_WAITALL) == text
    assert connection.getblocking()


@pytest.mark.parametrize(
    "name", [b"client:other", b"client:secre", b"client:secrets", b"secret", b"client:", b" "]
)
def test_who_says_another_token_is_told(gate, name):
    client = socket.create_connection(gate.address)
    client.sendall(hello(name))
    assert struct.unpack("<i", client.recv(4, socket.MSG_WAITALL)) == (CODES.RPC_CODE_MISMATCH,)
    assert _is_closed(client)


@pytest.mark.parametrize(
    "said",
    [
        hello(b"client:secret", magic=7),
        hello(b"client:secret", length=-1),
        hello(b"client:secret", length=0),
        hello(b"client:secret", length=2**31 - 1),
        hello(b"client:secret", length=LONGEST_NAME + 1),
        hello(b"client:\xff\xfe"),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_no_greeting_is_closed(gate, said):
    client = socket.create_connection(gate.address)
    client.sendall(said)
    assert _is_closed(client)


def test_clients_that_say_nothing_keep_nobody_out(gate):
    silent = [socket.create_connection(gate.address) for _ in range(MOST_WAITING - 2)]
    silent[0].sendall(hello(b"client:secret")[:-1])
    client = socket.create_connection(gate.address)
    client.sendall(hello(b"client:secret"))
    connection, address = gate.accept()
    assert address == client.getsockname()


def test_more_than_can_be_looked_at_are_closed(gate):
    silent = [socket.create_connection(gate.address) for _ in range(MOST_WAITING)]
    assert _is_closed(socket.create_connection(gate.address))
    silent[0].close()
    client = socket.create_connection(gate.address)
    while _is_closed(client, wait=False):  # until the place of the one that left is free
        client = socket.create_connection(gate.address)
    client.sendall(hello(b"client:secret"))
    assert gate.accept()[1] == client.getsockname()


def test_one_that_says_nothing_is_closed_in_time():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        gate = Gate(listening, "secret", CODES, seconds=0.05)
        client = socket.create_connection(listening.getsockname())
        client.sendall(b"\x71")
        assert _is_closed(client)
        gate.close()


def test_a_closed_gate_ends_its_thread_and_tells_who_waits():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        before = set(threading.enumerate())
        gate = Gate(listening, "secret", CODES)
        (thread,) = set(threading.enumerate()) - before
        gate.close()
        with pytest.raises(RuntimeError, match="closed"):
            gate.accept()
        with pytest.raises(RuntimeError, match="closed"):
            gate.accept()
        thread.join()


def _is_closed(client: socket.socket, wait: bool = True) -> bool:
    """Whether the other end closed a connection, which it does without a word (``wait``: it will)."""
    client.settimeout(None if wait else 0.05)
    try:
        return client.recv(1) == b""
    except ConnectionResetError:  # closed with something unread
        return True
    except TimeoutError:
        return False

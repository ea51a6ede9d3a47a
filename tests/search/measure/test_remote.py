"""Measuring over RPC on loopback: failures stay at the other end, a lost connection says so."""

import os
import signal
import socket
import string
import subprocess
import sys
import time

import pytest

from hetero_tvm.errors import TuningError, UsageError
from hetero_tvm.records.record import Site
from hetero_tvm.records.store import RecordStore, read_records
from hetero_tvm.search.loop import TuneOptions, tune
from hetero_tvm.search.measure.device_workers import DeviceWorkers
from hetero_tvm.search.measure.remote import Address, RemoteDevice
from hetero_tvm.search.measure.service import Job, Limits, contract_spec
from hetero_tvm.targets.registry import parse_target
from tests.search.spaces import MACHINE, BadSpace, Scale, ScaleSpace, task

DOOR = parse_target("cpu").device_door
TOKEN = "open-sesame"
ENVIRONMENT = {"HETERO_TVM_THREADS": "2", "HETERO_TVM_PIN": "0"}
LIMITS = Limits(build_seconds=600, run_seconds=600, memory=2 << 30)


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


class Process:
    """A command that ends with everything that it started."""

    def __init__(self, *command):
        self.process = subprocess.Popen(
            [sys.executable, "-m", *map(str, command)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def wait_for(self, text):
        for line in self.process.stdout:
            if text in line:
                return line
        raise AssertionError(f"it ended without saying {text!r}")

    def kill(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self.process.stdout.close()


def server(*more):
    port = free_port()
    process = Process("hetero_tvm.serve", "--port", port, "--token", TOKEN, *more)
    process.wait_for("serving on")
    return process, port


@pytest.fixture
def served():
    process, port = server()
    yield process, Address("127.0.0.1", port, token=TOKEN)
    process.kill()


def workers_at(address):
    device = RemoteDevice(address, DOOR.device, ENVIRONMENT)
    device.open()
    return DeviceWorkers([device], MACHINE, DOOR.compiler, LIMITS, slots=2)


@pytest.mark.thorough
def test_candidates_fail_at_the_other_end_only(served):
    with workers_at(served[1]) as workers:
        workers.add_task("bad", contract_spec(Scale(8, 64), BadSpace()))
        modes = ["good", "crash_run", "good", "wrong", "hang_run", "good"]
        jobs = [
            Job("bad", ({"point": {"mode": mode, "repeat": 1, "pieces": 2}},), run_seconds=limit)
            for mode, limit in zip(modes, [None, None, None, None, 1.0, None], strict=True)
        ]
        results = dict(workers.measure(jobs))
    assert [results[index][0].status for index in range(len(modes))] == [
        "ok",
        "crash",
        "ok",
        "wrong_result",
        "timeout",
        "ok",
    ]
    assert "SIGABRT" in results[1][0].text


@pytest.mark.exhaustive
def test_a_lost_connection_keeps_what_was_measured(served, tmp_path):
    process, address = served
    store = RecordStore(Site.of(MACHINE), tmp_path)

    def cut(event):
        if event["event"] == "trial":
            process.kill()

    lost = pytest.raises(TuningError, match="connection to .* is lost")
    with workers_at(address) as workers, lost as caught:
        tune([task(ScaleSpace())], MACHINE, TuneOptions(trials=12, batch=2), store, cut, workers=workers)
    assert "hetero_tvm.serve" in caught.value.hint
    assert 1 <= len(read_records(store.path)) < 12


@pytest.mark.exhaustive
def test_through_a_tracker(served):
    port = free_port()
    tracker = Process("tvm.exec.rpc_tracker", "--host", "127.0.0.1", "--port", port, "--port-end", port + 1)
    announced = None
    try:
        tracker.wait_for("bind to")
        announced, _ = server("--tracker", f"127.0.0.1:{port}", "--key", "board")
        with pytest.raises(TuningError, match="knows no server with key 'other'") as caught:
            RemoteDevice(Address("127.0.0.1", port, "other"), DOOR.device).open()
        assert "--key other" in caught.value.hint
        device = RemoteDevice(Address.parse(f"127.0.0.1:{port}:board"), DOOR.device)
        for _ in range(9000):  # the server announces itself a moment after it says that it serves
            try:
                assert device.open()["kind"] == "cpu"
                break
            except TuningError:
                time.sleep(0.2)
        assert device.device["cores"] >= 1
        device.close()
    finally:
        tracker.kill()
        if announced is not None:
            announced.kill()


def test_nobody_there():
    port = free_port()
    with pytest.raises(TuningError, match="no server answers") as caught:
        RemoteDevice(Address("127.0.0.1", port), DOOR.device).open()
    assert "python -m hetero_tvm.serve" in caught.value.hint


@pytest.mark.parametrize("text", ["host", "host:port", ":9090", "host:0", "host:99999"])
def test_wrong_addresses(text):
    with pytest.raises(UsageError, match="no address"):
        Address.parse(text)
    assert Address.parse("h:1:a:b") == Address("h", 1, "a:b")
    secret = Address.parse("to@ken@h:1")
    assert secret == Address("h", 1, None, "to@ken") and "ken" not in f"{secret} {secret!r}"


def test_a_token_may_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("HETERO_TVM_RPC_TOKEN", "secret")
    assert Address.parse("h:1").token == "secret" and Address.parse("other@h:1").token == "other"


@pytest.mark.thorough
@pytest.mark.parametrize("token, said", [("wrong", "refuses the token"), ("", "asks for a token")])
def test_who_does_not_know_the_token_gets_nothing(served, token, said):
    _, address = served
    with pytest.raises(TuningError, match=said) as caught:
        RemoteDevice(Address(address.host, address.port, token=token), DOOR.device).open()
    assert "TOKEN@" in caught.value.hint


@pytest.mark.thorough
def test_without_a_choice_token_and_port_are_random_and_printed():
    process = Process("hetero_tvm.serve", "--port", 0)
    try:
        line = process.wait_for("serving on")
        token, _, place = line.split("--rpc ")[1].partition("@")
        port = int(place.split(";")[0].removeprefix("HOST:"))
        assert len(token) >= 20
        assert set(token) <= set(string.hexdigits), "one that began with - would be read as an option"
        device = RemoteDevice(Address("127.0.0.1", port, token=token), DOOR.device, ENVIRONMENT)
        assert device.open()["kind"] == "cpu"
        device.close()
    finally:
        process.kill()


@pytest.mark.thorough
def test_other_interfaces_are_warned_of():
    port = free_port()
    process = Process("hetero_tvm.serve", "--host", "0.0.0.0", "--port", port, "--token", "x")
    try:
        assert "in plain text" in process.wait_for("warning")
    finally:
        process.kill()

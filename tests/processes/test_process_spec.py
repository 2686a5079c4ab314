"""Process numbers, rendezvous, and the slices that a process lacks; tested in one process."""

import contextlib
import itertools
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from t2tp import mtf
from t2tp.mesh.layout import Layout
from t2tp.processes.cluster import Cluster, connect
from t2tp.processes.messages import Channel, WrongSecretError
from t2tp.processes.process_spec import ProcessSpec, find_process_spec
from t2tp.processes.rendezvous import MissingProcessError, free_port, listen, rendezvous
from t2tp.program.outputs import dims_to_gather
from tests.patience import PATIENCE
from tests.program.reaching import own_address

VARIABLES = (
    *("TF_CONFIG", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_STEP_NODELIST", "SLURM_JOB_ID"),
    "T2TP_DEVICES_PER_PROCESS",
)


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def tf_config(index, kind="worker", **cluster):
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})


def test_without_a_word_there_is_one_process():
    for arguments in ((), (1,), (1, 0), (1, 0, "localhost:8476")):
        assert find_process_spec(*arguments) is None


def test_tf_config(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", tf_config(1, worker=["a:1", "b:2"]))
    assert find_process_spec() == ProcessSpec(1, 2, "a:1", "b:2")
    monkeypatch.setenv("TF_CONFIG", tf_config(1, chief=["c:3"], worker=["a:1", "b:2"]))
    assert find_process_spec() == ProcessSpec(2, 3, "c:3", "b:2")
    monkeypatch.setenv("TF_CONFIG", tf_config(0, worker=["a:1"]))
    assert find_process_spec() is None
    monkeypatch.setenv("TF_CONFIG", "{}")
    assert find_process_spec() is None


NODE_LISTS = [("n1", "n1"), ("node[07-12,15],x", "node07"), ("b2,a1", "b2"), ("gpu-a[3]", "gpu-a3")]


@pytest.mark.parametrize(("hosts", "first"), NODE_LISTS)
def test_slurm(monkeypatch, hosts, first):
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "16")
    monkeypatch.setenv("SLURM_PROCID", "9")
    monkeypatch.setenv("SLURM_STEP_NODELIST", hosts)
    monkeypatch.setenv("SLURM_JOB_ID", "12345")
    assert find_process_spec() == ProcessSpec(9, 16, f"{first}:20345")


def test_arguments_count_more_than_tf_config_and_that_more_than_slurm(monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "16")
    monkeypatch.setenv("TF_CONFIG", tf_config(1, worker=["a:1", "b:2"]))
    assert find_process_spec() == ProcessSpec(1, 2, "a:1", "b:2")
    assert find_process_spec(3, 1, "node7:8476") == ProcessSpec(1, 3, "node7:8476")
    assert find_process_spec(1) is None


REFUSED = [
    ((None, 1, "a:1"), {}, "num_processes is missing"),
    ((0, None, None), {}, "at least 1"),
    ((2, None, "a:1"), {}, "needs a process_id .0 to 1."),
    ((2, 0, None), {}, "needs .* a coordinator"),
    ((2, 2, "a:1"), {}, "process_id is 2; with num_processes=2 it is one of 0 to 1"),
    ((2, 0, "a"), {}, "'a', and must be host:port"),
    ((2, 0, "a:99999"), {}, "must be host:port"),
    ((), {"TF_CONFIG": "{"}, "TF_CONFIG must be like"),
    ((), {"TF_CONFIG": "[]"}, "TF_CONFIG must be like"),
    ((), {"TF_CONFIG": tf_config(0, worker=["a:1"], ps=["b:2"])}, "of type ps"),
    (
        (),
        {"TF_CONFIG": tf_config(2, worker=["a:1", "b:2"])},
        "this is task .'worker', 2., and its cluster has",
    ),
    ((), {"TF_CONFIG": tf_config(0, worker=["a", "b:2"])}, "'a', and must be host:port"),
    ((), {"SLURM_STEP_NUM_TASKS": "2"}, "'SLURM_PROCID' is not set: .* with srun"),
]


@pytest.mark.parametrize(("arguments", "environment", "said"), REFUSED)
def test_inconsistent_settings_are_refused(monkeypatch, arguments, environment, said):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=said):
        find_process_spec(*arguments)


def meet_all(joining, number, seconds=5.0, brings="a mesh"):
    """Runs the rendezvous of process 0 with others, `(process_id, num_processes, brings)`.

    Returns:
      The address of process 0, and the result or error of each process.
    """
    point = f"localhost:{free_port()}"
    places = [(0, number, brings), *joining]

    def one(each):
        process_id, num_processes, brought = each
        try:
            return rendezvous(ProcessSpec(process_id, num_processes, point), brought, seconds)[0]
        except (ValueError, MissingProcessError) as error:
            return error

    with ThreadPoolExecutor(len(places)) as threads:
        return point, list(threads.map(one, places))


def test_processes_that_meet_all_get_the_same_addresses():
    point, (first, *others) = meet_all([(2, 3, "a mesh"), (1, 3, "a mesh")], 3)
    assert first[0] == point
    assert len({address for address in first}) == 3
    assert others == [first, first]


def test_addresses_that_are_settled_are_kept():
    point = f"localhost:{free_port()}"
    with ThreadPoolExecutor(2) as threads:
        places = [ProcessSpec(i, 2, point, address) for i, address in enumerate((point, "there:7"))]
        for found, _ in threads.map(lambda place: rendezvous(place, "a mesh", 5.0), places):
            assert found == [point, "there:7"]


CASES = [
    ([(1, 3, "a mesh"), (2, 3, "another")], 3, "Process 2 brings another, and process 0 a me"),
    ([(1, 4, "a mesh")], 3, "Process 1 was started as one of 4, and process 0 as one of 3"),
    ([(1, 3, "a mesh"), (1, 3, "a mesh")], 3, "Two processes were started as number 1 of 3"),
    ([(-1, 2, "a mesh")], 2, "started as number -1 of 2: the numbers are 0 to 1"),
    ([(2, 2, "a mesh")], 2, "started as number 2 of 2: the numbers are 0 to 1"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("joining", "number", "said"), CASES)
def test_processes_that_do_not_fit_together_all_get_the_same_sentence(joining, number, said):
    _, answers = meet_all(joining, number)
    for answer in answers:
        assert isinstance(answer, ValueError)
        assert said in str(answer)


def test_who_comes_late_hears_what_does_not_fit():
    point = f"localhost:{free_port()}"
    with ThreadPoolExecutor(3) as threads:
        asked = [
            threads.submit(rendezvous, ProcessSpec(i, 3, point), brings, 5.0)
            for i, brings in ((0, "a mesh"), (2, "another"))
        ]
        threading.Event().wait(0.5)
        asked.append(threads.submit(rendezvous, ProcessSpec(1, 3, point), "a mesh", 5.0))
        for each in asked:
            assert "Process 2 brings another" in str(each.exception())


def test_a_process_that_does_not_come_is_named_to_those_who_did():
    point, answers = meet_all([(2, 4, "a mesh")], 4, seconds=1.0)
    for answer in answers:
        assert isinstance(answer, MissingProcessError)
        assert f"Of 4 processes, number 1, 3 did not come to {point} within 1 s." in str(answer)


def test_if_process_0_does_not_come_the_others_say_so():
    point = f"localhost:{free_port()}"
    said = f"Process 1 of 2 waited 1 s for process 0 at {point}"
    with pytest.raises(MissingProcessError, match=said):
        rendezvous(ProcessSpec(1, 2, point), "a mesh", 1.0)


@pytest.fixture
def process_0(request):
    """Starts process 0, which waits for process 1; yields its port and its future."""
    seconds = getattr(request, "param", PATIENCE)
    with ThreadPoolExecutor(1) as threads:
        port = free_port()
        spec = ProcessSpec(0, 2, f"localhost:{port}")
        first = threads.submit(rendezvous, spec, "a mesh", seconds)
        wait_for_port(port)
        yield port, first


def wait_for_port(port):
    while True:
        with contextlib.suppress(OSError):
            return socket.create_connection(("localhost", port)).close()
        threading.Event().wait(0.02)


def test_a_restarted_process_waits_while_the_old_server_listens():
    """TensorFlow's server of the previous start listens at process 0's address until it ends."""
    port = free_port()
    specs = [ProcessSpec(process_id, 2, f"localhost:{port}") for process_id in range(2)]
    with ThreadPoolExecutor(2) as threads:
        with socket.create_server(("localhost", port)) as old:
            second = threads.submit(rendezvous, specs[1], "a mesh", 60.0)
            connection, _ = old.accept()
            connection.sendall(b"\0\0\x12\4\n")  # gRPC begins like this, a rendezvous does not.
        connection.close()
        first = threads.submit(rendezvous, specs[0], "a mesh", 60.0)
        assert first.result()[0] == second.result()[0]


def test_strangers_who_say_nothing_keep_nobody_waiting(process_0):
    port, first = process_0
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            stranger = stack.enter_context(socket.create_connection(("localhost", port)))
            stranger.sendall(b"h")
        begin = time.monotonic()
        rendezvous(ProcessSpec(1, 2, f"localhost:{port}"), "a mesh", PATIENCE)
        assert time.monotonic() - begin < PATIENCE / 2
    first.result()


HELLO = {"process_id": 1, "num_processes": 2, "brings": "a mesh", "address": "localhost:7"}


NOT_SAID = [
    b"",
    b"GET / HTTP/1.0",
    b"[" * 100_000,
    b"[1e999]",
    json.dumps({**HELLO, "process_id": 1e999}).encode(),
    json.dumps({**HELLO, "process_id": "1"}).encode(),
    json.dumps({**HELLO, "address": "nowhere"}).encode(),
    json.dumps({**HELLO, "address": ["localhost:7"]}).encode(),
    b"x" * (2 << 20),
]


@pytest.mark.parametrize("is_signed", [False, True])
@pytest.mark.parametrize("said", NOT_SAID)
def test_what_no_process_says_is_not_heard(process_0, said, is_signed):
    port, first = process_0
    with socket.create_connection(("localhost", port)) as connection:
        channel = Channel(connection, b"")
        channel.accept_challenge(time.monotonic() + PATIENCE)
        signed = b" ".join([channel._signature(b"nonce", said), b"nonce", said])
        with contextlib.suppress(OSError):
            channel._send_line(signed if is_signed else said, time.monotonic() + PATIENCE)
        connection.settimeout(5.0)
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(100) in (b"", b"refused\n")
    rendezvous(ProcessSpec(1, 2, f"localhost:{port}"), "a mesh", PATIENCE)
    first.result()


def test_between_hosts_a_secret_is_required(monkeypatch):
    monkeypatch.delenv("T2TP_SECRET", raising=False)
    for process_id in (0, 1):
        with pytest.raises(ValueError, match="need a secret.*set T2TP_SECRET to the same"):
            rendezvous(ProcessSpec(process_id, 2, "node7:8476"), "a mesh", 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("process_0", [4.0], indirect=True)
def test_who_has_another_secret_is_told_and_stays_out(process_0, monkeypatch):
    port, first = process_0
    main = threading.current_thread()
    monkeypatch.setattr(
        "t2tp.processes.rendezvous.run_secret",
        lambda: b"one" if threading.current_thread() is main else b"other",
    )
    with pytest.raises(ValueError, match="has another T2TP_SECRET than process 1"):
        rendezvous(ProcessSpec(1, 2, f"localhost:{port}"), "a mesh", 1.0)
    said = "number 1 did not come to .* 1 came with another T2TP_SECRET"
    with pytest.raises(MissingProcessError, match=said):
        first.result()


def test_a_signed_message_is_worth_nothing_on_another_connection():
    def ends():
        ours, theirs = socket.socketpair()
        return Channel(ours, b"secret"), Channel(theirs, b"secret"), theirs

    deadline = time.monotonic() + PATIENCE
    sender, receiver, wire = ends()
    receiver.challenge(deadline)
    sender.accept_challenge(deadline)
    sender.send("hello", deadline)
    overheard = wire.recv(1000, socket.MSG_PEEK)
    assert receiver.receive(deadline) == "hello"
    sender, receiver, wire = ends()
    receiver.challenge(deadline)
    sender.connection.sendall(overheard)
    with pytest.raises(WrongSecretError):
        receiver.receive(deadline)


def test_an_old_answer_is_worth_nothing_to_a_process_that_asks_again():
    """A stranger replays the challenge and the answer that process 0 has sent before."""

    def hello(challenge):
        ours, theirs = socket.socketpair()
        channel = Channel(ours, b"secret")
        theirs.sendall(challenge)
        channel.accept_challenge(deadline)
        channel.send(HELLO, deadline)
        return channel, theirs

    deadline = time.monotonic() + PATIENCE
    theirs, stranger = socket.socketpair()
    process_0 = Channel(theirs, b"secret")
    process_0.challenge(deadline)
    challenge = stranger.recv(1000)
    before, wire = hello(challenge)
    stranger.sendall(wire.recv(1000))
    assert process_0.receive(deadline) == HELLO
    process_0.send("answer", deadline)
    answer = stranger.recv(1000)
    wire.sendall(answer)
    assert before.receive(deadline) == "answer"
    again, wire = hello(challenge)
    wire.sendall(answer)
    with pytest.raises(WrongSecretError):
        again.receive(deadline)


def test_what_a_process_has_said_is_no_answer_to_it():
    deadline = time.monotonic() + PATIENCE
    ours, theirs = socket.socketpair()
    channel = Channel(ours, b"secret")
    theirs.sendall(b"0123456789abcdef" * 2 + b"\n")
    channel.accept_challenge(deadline)
    channel.send(HELLO, deadline)
    theirs.sendall(theirs.recv(1000))
    with pytest.raises(WrongSecretError):
        channel.receive(deadline)


def test_process_0_listens_where_its_name_says():
    with listen(f"localhost:{free_port()}") as listener:
        assert listener.getsockname()[0] == "127.0.0.1"
    own = own_address()
    if own is not None:
        with listen(f"{own}:{free_port()}") as listener:
            assert listener.getsockname()[0] == own
    with listen(f"203.0.113.7:{free_port()}") as listener:
        assert listener.getsockname()[0] == "0.0.0.0"


def test_a_port_in_use_is_refused():
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"cannot serve at localhost:{port}: Address already"):
            rendezvous(ProcessSpec(0, 2, f"localhost:{port}"), "a mesh", 1.0)


def test_devices_that_the_launcher_was_told_must_be_those_of_the_mesh(monkeypatch):
    monkeypatch.setenv("T2TP_DEVICES_PER_PROCESS", "3")
    with pytest.raises(ValueError, match="needs 4 devices in each process, and t2tp_launch was to"):
        connect(4)
    assert len(connect(3).devices) == 3


def test_processors_are_dealt_out_in_blocks():
    cluster = Cluster(tuple("abcdef"), process_id=1, num_processes=3)
    assert cluster.local_pnums == range(2, 4)
    assert [cluster.process_of(pnum) for pnum in range(6)] == [0, 0, 1, 1, 2, 2]


MESHES = ["a:2;b:2", "a:2;b:3;c:2", "a:3;b:2;c:2", "a:4;b:3", "a:1;b:4;c:2"]


@pytest.mark.parametrize("mesh_shape", MESHES)
def test_after_gathering_every_process_has_every_slice_and_no_more_than_needed(mesh_shape):
    names = [pair[0] for pair in mesh_shape.split(";")]
    for count in range(1, len(names) + 1):
        for split in itertools.combinations(names, count):
            layout = Layout(mesh_shape, ";".join(f"d_{axis}:{axis}" for axis in split))
            shape = mtf.Shape([mtf.Dimension(f"d_{axis}", 12) for axis in split])
            for number in (n for n in range(1, layout.size + 1) if layout.size % n == 0):
                cluster = Cluster(("cpu",) * layout.size, 0, number)
                gathered = [split[i] for i in dims_to_gather(layout, cluster, shape)]
                left = [axis for axis in split if axis not in gathered]
                assert has_all(layout, cluster, left)
                if gathered:
                    assert not has_all(layout, cluster, [gathered[-1], *left])
                if number == 1:
                    assert not gathered


def has_all(layout, cluster, axes):
    """Returns whether each process has processors at all coordinates along some axes."""
    wanted = 1
    for axis in layout.mesh_shape.dims:
        wanted *= axis.size if axis.name in axes else 1
    for process_id in range(cluster.num_processes):
        places = map(layout.coordinates, cluster.pnums_of(process_id))
        if len({tuple(place[axis] for axis in axes) for place in places}) != wanted:
            return False
    return True


def test_more_virtual_devices_than_a_process_can_have_are_refused_at_once():
    said = "A mesh with 99999999 processors in one process .* t2tp_trainer has --explain_layout"
    with pytest.raises(ValueError, match=said):
        connect(99999999)

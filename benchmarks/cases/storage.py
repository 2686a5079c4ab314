"""What training reads and writes: batches and checkpoints."""

from __future__ import annotations

from suite.turns import HERE, Peer

from cases.group import Group

DATA_DIR = HERE / "data"
MEGABYTES = {"design": 200, "tiny": 2}


def input_pipeline(size: str) -> list[Group]:
    """Returns peers whose examples/s are compared, on data that `make bench-full` generates."""
    batches = 100 if size == "design" else 5
    arguments = [f"--data_dir={DATA_DIR}", f"--batches={batches}"]
    peers = [
        Peer("t2tp, one thread", "input_pipeline", [*arguments, "--what=t2tp"]),
        Peer("tf.data, all cores", "input_pipeline", [*arguments, "--what=tf_data"]),
    ]
    return [Group("64 x 256 tokens", peers, batches * 64, "examples")]


def checkpoints(size: str) -> list[Group]:
    """Returns groups that compare saving and restoring with a plain copy of a file."""
    megabytes = MEGABYTES[size]
    arguments = [f"--mb={megabytes}"]
    return [
        Group(
            f"{what}, {megabytes} MB",
            [
                Peer("t2tp", "checkpoint", [*arguments, f"--what=t2tp_{what}"]),
                Peer("tf.train.Checkpoint", "checkpoint", [*arguments, f"--what=tf_{what}"]),
                Peer("copy of a file", "checkpoint", [*arguments, "--what=copy"]),
            ],
            megabytes * 1e6,
            "bytes",
        )
        for what in ("save", "restore")
    ]

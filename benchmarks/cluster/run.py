"""Trains on hosts that are lost at random moments, and says what each loss costs.

    python benchmarks/cluster/run.py --deaths=10 --out=/tmp/cluster

Four hosts of one process each, as network namespaces (see `network`); they need root. The curve of
the disturbed run has to be that of an undisturbed one, bit for bit, and so has the checkpoint.
When it is interrupted, the same command continues it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks.cluster.network import BadLink, Network, address, missing

HOSTS = 4
BAD = 3  # The host whose link may be bad.
SECRET = "of the benchmark"
PATIENCE = 1200.0  # Seconds without progress after which the run has failed.
CLI = [sys.executable, "-m", "t2tp.trainer.cli"]
ENVIRONMENT = {
    **os.environ,
    "T2TP_SECRET": SECRET,
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}


@dataclass
class Run:
    """A run whose log says how far it is.

    Attributes:
      directory: of the run.
      flags: of the trainer.
    """

    directory: Path
    steps: int
    save_every: int
    memory_every: int
    data: Path
    flags: list[str] = field(default_factory=list)

    def command(self) -> list[str]:
        """Returns the command that trains."""
        given = {
            "problem": "algorithmic_reverse_binary40",
            "model": "transformer",
            "hparams_set": "transformer_tiny",
            "hparams": "batch_size=8,d_model=32,d_ff=64,num_heads=4,num_hidden_layers=1",
            "mesh_shape": "data:2;model:2",
            "data_dir": self.data,
            "output_dir": self.directory,
            "train_steps": self.steps,
            "save_checkpoints_steps": self.save_every,
            "log_step_count_steps": 1,
            "log_json": self.log,
            "schedule": "train",
        }
        if self.memory_every:
            given["memory_checkpoint_every"] = self.memory_every
        return [*CLI, "t2tp_trainer", *(f"--{name}={value}" for name, value in given.items())]

    @property
    def log(self) -> Path:
        """The lines of JSON."""
        return self.directory.with_suffix(".jsonl")

    def losses(self) -> dict[int, float]:
        """Returns the loss of each step."""
        if not self.log.exists():
            return {}
        found = {}
        for line in self.log.read_text().splitlines():
            try:
                event = json.loads(line)
            except ValueError:  # Half a line.
                continue
            if event["event"] == "report":
                found[event["step"]] = event["loss"]
        return found

    def step(self) -> int:
        """Returns the latest step."""
        return max(self.losses(), default=0)


def start(network: Network, host: int, run: Run, out: Path) -> None:
    """Starts the launcher of a host."""
    hosts = ",".join(f"{address(each)}:8470" for each in range(network.count))
    launch = [*CLI, "t2tp_launch", "-n", "1", f"--hosts={hosts}", f"--host_id={host}"]
    launch += ["--max_restarts=1000", *run.command()]
    with (out / f"host{host}.log").open("a") as output:
        network.start(host, launch, ENVIRONMENT, output)


def wait_for(run: Run, step: int, seconds: float) -> None:
    """Waits until the run has done a step.

    Raises:
      TimeoutError: it has not.
    """
    deadline = time.monotonic() + seconds
    while (done := run.step()) < step:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the run is at step {done} after {seconds:.0f} s, not at {step}")
        time.sleep(0.2)


@dataclass
class Loss:
    """What a disturbance cost; seconds are from its beginning.

    Attributes:
      what: `host`, `two hosts`, `link` or `bad link`.
      host: the first that was disturbed.
      step: at which.
      again: steps that were done again.
      noticed: seconds until a launcher said that a host is lost.
      training: seconds until the run had gone back to its checkpoint, to begin with its next step.
      further: seconds until the first step that is new.
    """

    what: str
    host: int
    step: int
    again: int
    noticed: float
    training: float
    further: float

    def describe(self) -> str:
        """Returns a line."""
        if self.what == "bad link":
            return f"step {self.step}: over the bad link for {self.further:.1f} s"
        return (
            f"step {self.step}: {self.what} {self.host}: noticed after {self.noticed:.1f} s,"
            f" restored after {self.training:.1f} s, further after {self.further:.1f} s,"
            f" {self.again} steps again"
        )


def disturb(network: Network, run: Run, out: Path, what: str, host: int) -> Loss:
    """Disturbs the run, waits until it is further than before, and mends what was broken.

    Args:
      network: of the hosts.
      run: the run.
      out: where the logs are.
      what: `host`, `two hosts` or `link`.
      host: to be disturbed; a later one if it does not train, since that would cost nothing.
    """
    host = next_that_trains(network, host)
    logs = [out / f"host{each}.log" for each in range(HOSTS)]
    said = [log.stat().st_size for log in logs]
    victims = [host, (host + 1) % HOSTS] if what == "two hosts" else [host]
    begin = time.monotonic()
    for victim in victims:
        (network.cut if what == "link" else network.power_off)(victim)
    time.sleep(1.0)  # What was done is written down; nobody has noticed yet.
    before = run.step()
    noticed = training = 0.0
    lowest = before
    # The log is cut back to the checkpoint, unless its step was the last one.
    while (done := run.step()) <= before:
        seconds = time.monotonic() - begin
        if not noticed and any(
            b": restart " in log.read_bytes()[size:] for log, size in zip(logs, said, strict=True)
        ):
            noticed = seconds
        if done < before and not training:
            training = seconds
        lowest = min(lowest, done)
        if seconds > PATIENCE:
            raise TimeoutError("the run did not go on")
        time.sleep(0.05)
    further = time.monotonic() - begin
    for victim in victims:
        network.connect(victim)
        if what != "link":
            start(network, victim, run, out)
    again = before - lowest
    return Loss(what, host, before, again, noticed or further, training or further, further)


def next_that_trains(network: Network, host: int) -> int:
    """Waits until a host trains; returns the first that does, from a host on."""
    while True:
        for each in range(host, host + HOSTS):
            commands = network.commands(each % HOSTS)
            if any("t2tp_trainer" in each and "t2tp_launch" not in each for each in commands):
                return each % HOSTS
        time.sleep(0.2)


def spoil(network: Network, run: Run, steps: int) -> Loss:
    """Makes a link bad for some steps."""
    before, begin = run.step(), time.monotonic()
    network.set_bad(BAD, True)
    wait_for(run, before + steps, PATIENCE)
    network.set_bad(BAD, False)
    return Loss("bad link", BAD, before, 0, 0.0, 0.0, time.monotonic() - begin)


def undisturbed(run: Run) -> None:
    """Generates the data and trains without launchers, unless that has been done.

    Raises:
      SystemExit: it has failed.
    """
    if run.step() == run.steps:
        return
    generate = [
        *CLI,
        "t2tp_datagen",
        "--problem=algorithmic_reverse_binary40",
        f"--data_dir={run.data}",
    ]
    for command in (generate, run.command()):
        done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)


def checkpoints_are_equal(runs: Sequence[Run]) -> bool:
    """Whether the last checkpoints of runs are equal, bit for bit."""
    paths = [str(run.directory / f"checkpoints/step-{run.steps:08d}") for run in runs]
    command = [*CLI, "t2tp_inspect_checkpoint", *paths]
    return not subprocess.run(command, env=ENVIRONMENT, capture_output=True, check=False).returncode


def print_table(losses: Sequence[Loss]) -> None:
    """Prints medians by kind of disturbance, as a table in Markdown."""
    print("| what | times | noticed | restored | further | at most | steps again |")
    print("| -- | --: | --: | --: | --: | --: | --: |")
    for what in dict.fromkeys(loss.what for loss in losses):
        found = [loss for loss in losses if loss.what == what]
        medians = [
            statistics.median(values)
            for values in zip(*[(x.noticed, x.training, x.further) for x in found], strict=True)
        ]
        seconds = " | ".join(
            f"{value:.0f} s" for value in (*medians, max(x.further for x in found))
        )
        again = statistics.mean(loss.again for loss in found)
        print(f"| {what} | {len(found)} | {seconds} | {again:.0f} |")


def main() -> int:
    """Runs what the flags say; returns 0 if the curves are equal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deaths", type=int, default=10, help="hosts to lose, one by one")
    parser.add_argument("--pairs", type=int, default=2, help="how often to lose two neighbours")
    parser.add_argument("--cuts", type=int, default=1, help="how often to cut a link")
    parser.add_argument("--bad_steps", type=int, default=5, help="steps over a bad link to host 3")
    parser.add_argument("--loss", type=float, default=0.05, help="what that loses of its frames")
    parser.add_argument("--delay", type=float, default=0.1, help="its round trip, in seconds")
    parser.add_argument("--between", type=int, default=60, help="steps between two disturbances")
    parser.add_argument("--save_every", type=int, default=50)
    parser.add_argument("--memory_every", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True, help="a run there is continued")
    args = parser.parse_args()
    if missing():
        print(missing())
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    settings = {name: value for name, value in vars(args).items() if name != "out"}
    about, record = args.out / "settings.json", args.out / "losses.jsonl"
    args.out.mkdir(parents=True, exist_ok=True)
    if about.exists() and json.loads(about.read_text()) != settings:
        print(f"{args.out} has a run with other settings: give another --out")
        return 2
    about.write_text(json.dumps(settings))
    losses = (
        [Loss(**json.loads(line)) for line in record.read_text().splitlines()]
        if record.exists()
        else []
    )
    events = ["host"] * args.deaths + ["two hosts"] * args.pairs + ["link"] * args.cuts
    events += ["bad link"] * bool(args.bad_steps)
    chance = random.Random(args.seed)
    chance.shuffle(events)
    drawn = [
        (chance.randrange(5, args.between), chance.random(), chance.randrange(HOSTS))
        for _ in events
    ]
    steps = (len(events) + 2) * args.between
    data = args.out / "data"
    alone = Run(args.out / "alone", steps, args.save_every, 0, data)
    run = Run(args.out / "run", steps, args.save_every, args.memory_every, data)
    undisturbed(alone)
    bad = {BAD: BadLink(args.loss, args.delay / 2)} if args.bad_steps else {}
    print(
        f"{steps} steps; {len(events)} disturbances; disk every {args.save_every} steps, memory"
        f" every {args.memory_every or '-'}",
        flush=True,
    )
    begin = time.monotonic()
    with Network(HOSTS, bad) as network:
        for host in range(HOSTS):
            start(network, host, run, args.out)
        for host in bad:
            network.set_bad(host, False)
        for number, (what, (after, seconds, host)) in enumerate(zip(events, drawn, strict=True)):
            if number < len(losses):
                continue
            wait_for(run, number * args.between + after, PATIENCE)
            time.sleep(seconds)
            if what == "bad link":
                losses.append(spoil(network, run, args.bad_steps))
            else:
                losses.append(disturb(network, run, args.out, what, host))
            print(losses[-1].describe(), flush=True)
            with record.open("a") as lines:
                lines.write(f"{json.dumps(asdict(losses[-1]))}\n")
        wait_for(run, steps, PATIENCE)
        network.wait(PATIENCE)
    print(f"the run took {time.monotonic() - begin:.0f} s")
    print_table(losses)
    same = run.losses() == alone.losses() and len(alone.losses()) == steps
    same_end = checkpoints_are_equal([alone, run])
    print(f"losses equal, bit for bit: {same}; checkpoints equal: {same_end}")
    return 0 if same and same_end else 1


if __name__ == "__main__":
    sys.exit(main())

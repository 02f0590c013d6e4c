"""A sweep on a real Slurm of two nodes on this machine (`nox -s slurm`): steps killed, a node lost, a job requeued."""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sweeps import equal_to_single_runs

from benchmark.sweep.status import read_status
from benchmark.sweep.steps import bench

pytestmark = pytest.mark.slurm

CONF = """
ClusterName=bench
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmctldPort={ports[0]}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/jobs.txt
MpiDefault=none
MinJobAge=600
ReturnToService=2
SlurmdTimeout=15
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1 RealMemory=8000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1 RealMemory=8000
PartitionName=p Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Cluster:
    """munged, slurmctld and two slurmd in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nodes: dict[str, subprocess.Popen] = {}
        folder.mkdir(mode=0o755)
        for name in ("state", "spool-n1", "spool-n2"):
            (folder / name).mkdir()
        text = CONF.format(host=socket.gethostname().partition(".")[0], folder=folder, ports=free_ports(3))
        (folder / "slurm.conf").write_text(text)
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o400)
        self.environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}
        files = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munge.pid", "seed-file": "munge.seed"}
        options = [f"--{name}={folder / file}" for name, file in (files | {"log-file": "munge.log"}).items()]
        self.others = [
            self.start("munged", "--force", "--foreground", *options),
            self.start("slurmctld", "-D"),
        ]
        for name in ("n1", "n2"):
            self.boot(name)
        self.wait(lambda: self.call("sinfo", "--noheader", "--format=%T %D") == "idle 2", 60)

    def start(self, *words: str) -> subprocess.Popen:
        log = (self.folder / f"{words[0]}.out").open("ab")
        return subprocess.Popen(words, env=self.environment, stdout=log, stderr=log)

    def boot(self, name: str) -> None:
        self.nodes[name] = self.start("slurmd", "-D", "-N", name)

    def call(self, *words: str) -> str:
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    def queue(self) -> list[list[str]]:
        """Job, state, node and name of each."""
        lines = self.call("squeue", "--noheader", "--array", "--format=%i|%T|%N|%j|%A").splitlines()
        return [line.split("|") for line in lines]

    def running(self, node: str | None = None) -> list[list[str]]:
        return [job for job in self.queue() if job[1] == "RUNNING" and node in (None, job[2])]

    @staticmethod
    def wait(condition, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end
            time.sleep(0.3)

    def stop(self) -> None:
        for process in (*self.nodes.values(), *reversed(self.others)):
            process.kill()
            process.wait()


@pytest.fixture
def cluster(tmp_path, monkeypatch) -> Iterator[Cluster]:
    found = Cluster(tmp_path / "slurm")
    monkeypatch.setenv("SLURM_CONF", str(found.folder / "slurm.conf"))
    yield found
    found.stop()


def processes(text: str) -> dict[int, str]:
    """Processes whose command line has this text."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in words:
            found[int(path.parent.name)] = words
    return found


class Story:
    """What happened when, for people."""

    def __init__(self) -> None:
        self.began = time.monotonic()

    def tell(self, text: str) -> None:
        sys.stderr.write(f"{time.monotonic() - self.began:5.0f} s  {text}\n")


def kill_a_step(cluster: Cluster, folder: Path, story: Story) -> None:
    cluster.wait(lambda: processes("benchmark.cli run --method"), 60)
    victim, line = next(iter(processes("benchmark.cli run --method").items()))
    os.kill(victim, signal.SIGKILL)
    cluster.wait(lambda: read_status(folder).failed, 60)
    story.tell(f"killed a step: {' '.join(line.split()[4:])}")


def lose_a_node(cluster: Cluster, story: Story) -> None:
    """The daemon and all that runs below it are killed; Slurm notices and gives the job to another node."""
    cluster.wait(lambda: cluster.running("n2"), 60)
    lost = cluster.running("n2")[0]
    cluster.nodes["n2"].kill()
    cluster.nodes["n2"].wait()
    for process, line in processes("slurmstepd").items():
        if f"[{lost[4]}." in line:
            for each in (process, *processes_below(process)):
                os.kill(each, signal.SIGKILL)
    story.tell(f"node n2 lost, with job {lost[0]}")
    cluster.wait(lambda: "down" in cluster.call("sinfo", "--noheader", "--nodes=n2", "--format=%T"), 90)
    cluster.wait(lambda: any(job[0] == lost[0] and job[1] == "PENDING" for job in cluster.queue()), 60)
    story.tell(f"Slurm has put job {lost[0]} back into the queue")
    cluster.boot("n2")
    cluster.call("scontrol", "update", f"JobId={lost[0]}", "StartTime=now")  # or it would be held for two minutes
    cluster.wait(lambda: cluster.running("n2"), 120)
    story.tell("n2 is back and has work")


def requeue_a_job(cluster: Cluster, story: Story) -> None:
    cluster.wait(lambda: cluster.running("n1"), 60)
    job = cluster.running("n1")[0][0]
    cluster.call("scontrol", "requeue", job)
    cluster.wait(lambda: any(each[0] == job and each[1] == "PENDING" for each in cluster.queue()), 60)
    cluster.call("scontrol", "update", f"JobId={job}", "StartTime=now")
    story.tell(f"requeued job {job}")


def wait_for_all(cluster: Cluster) -> int:
    """The most jobs that ran at once."""
    most = 0

    def over() -> bool:
        nonlocal most
        most = max(most, len(cluster.running()))
        return not cluster.queue()

    cluster.wait(over, 400)
    return most


def test_a_sweep_on_two_nodes_whatever_happens(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("CNCD_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    story, folder = Story(), Path("results/sweeps/s")
    words = [*bench(), "sweep", "--suite", "smoke", "--methods", "fea,gm,frost,simgcd,autonovel,kmeans"]
    words += ["--engine", "slurm", "--threads", "1", "--jobs", "2", "--minutes", "30", "--name", "s"]
    shell = subprocess.run(["bash", "-c", shlex.join(words)], capture_output=True, text=True, check=False)
    assert shell.returncode == 0, shell.stderr
    story.tell(f"submitted: {', '.join(re.findall('job [0-9]+', shell.stdout))}; the shell is gone")
    bases, runs = ([job for job in cluster.queue() if job[3].endswith(end)] for end in ("-base", "-run"))
    assert (len(bases), len(runs)) == (3, 18)
    assert {job[1] for job in runs} == {"PENDING"}
    cluster.wait(lambda: any(job[3].endswith("-run") for job in cluster.running()), 120)
    assert not [job for job in cluster.queue() if job[3].endswith("-base")]
    story.tell("runs began when all base sessions were done")
    kill_a_step(cluster, folder, story)
    lose_a_node(cluster, story)
    requeue_a_job(cluster, story)
    assert wait_for_all(cluster) <= 2
    status = read_status(folder)
    story.tell(f"the queue is empty: {status.count('done')} steps done, {len(status.failed)} failed")
    assert [each.said for each in status.failed] == ["killed by SIGKILL"]
    again = subprocess.run(words, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert "17 done, 1 to do" in again.stderr
    cluster.wait(lambda: not cluster.queue(), 120)
    assert all(each.state == "done" for each in read_status(folder).states)
    story.tell("the same command again: all 18 runs done")
    assert equal_to_single_runs(Path("results/runs")) == 18
    story.tell("all records equal those of single runs")


def processes_below(process: int) -> list[int]:
    """Children, and their children."""
    try:
        text = Path(f"/proc/{process}/task/{process}/children").read_text()
    except OSError:
        return []
    direct = [int(word) for word in text.split()]
    return [*direct, *(each for child in direct for each in processes_below(child))]

"""One contestant: a process that answers measurements, and how quiet the machine was meanwhile."""

import json
import os
import pathlib
import subprocess
import time

import serve

# What jobs and `rlctl run` set for the trainer; peers run as their users run them.
OURS_ALONE = {"GOMP_SPINCOUNT": "1000"}


class Contestant:
    def __init__(self, name, command, threads):
        environment = {key: value for key, value in os.environ.items() if key not in OURS_ALONE}
        environment |= {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        if name == "ours":
            environment |= OURS_ALONE
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env=environment)
        self.loaded = self.answer("ready")

    def answer(self, key):
        for line in self.process.stdout:
            # Libraries write to standard output too.
            if line.startswith("{") and f'"{key}"' in line:
                return json.loads(line)
        raise SystemExit(f"{self.process.args} ended with {self.process.wait()} before it answered")

    def measure(self, load):
        surroundings = Surroundings(self.process.pid, *self.ranks(), os.getpid())
        self.process.stdin.write(load + "\n")
        self.process.stdin.flush()
        result = self.answer("tokens")
        return result | surroundings.result()

    def ranks(self):
        """Processes that the contestant has started to compute with it."""
        pid = self.process.pid
        return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def end(self):
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()


class Surroundings:
    """Cores that processes outside this measurement used, and cores that the machine's host took (steal)."""

    def __init__(self, *pids):
        self.pids, self.start = pids, time.perf_counter()
        self.before, self.own = self.machine(), self.mine()

    def machine(self):
        """Seconds in use and stolen since the start of the machine: proc(5), the first line of /proc/stat."""
        fields = map(int, pathlib.Path("/proc/stat").read_text().split()[1:9])
        user, nice, system, _, _, irq, softirq, stolen = (ticks / os.sysconf("SC_CLK_TCK") for ticks in fields)
        return user + nice + system + irq + softirq, stolen

    def mine(self):
        return sum(serve.cpu_seconds(f"/proc/{pid}/stat") for pid in self.pids)

    def result(self):
        seconds = time.perf_counter() - self.start
        used, stolen = (after - before for after, before in zip(self.machine(), self.before))
        others = max(0.0, used - (self.mine() - self.own))
        return {"others_cores": round(others / seconds, 2), "stolen_cores": round(stolen / seconds, 2)}

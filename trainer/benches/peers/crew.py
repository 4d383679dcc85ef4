"""The ranks of a peer: the process that was started, and those that it starts to do the same beside it."""

import json
import os
import socket
import subprocess
import sys

import torch
import torch.distributed as dist

import serve


def free_port():
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


class Crew:
    """Starts the other ranks, or joins those that have started this one; threads are divided among them."""

    def __init__(self, size):
        torch.set_num_threads(max(1, torch.get_num_threads() // size))
        self.others = []
        if "RANK" not in os.environ:
            os.environ |= {"RANK": "0", "WORLD_SIZE": str(size), "MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port()),
                           "GLOO_SOCKET_IFNAME": "lo"}
            self.others = [self.start(rank) for rank in range(1, size)]
        dist.init_process_group("gloo")
        self.rank = dist.get_rank()

    def start(self, rank):
        return subprocess.Popen([sys.executable, *sys.argv], env=os.environ | {"RANK": str(rank)}, stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, text=True)

    def turns(self):
        while load := serve.wait_for_turn():
            for other in self.others:
                other.stdin.write(load + "\n")
                other.stdin.flush()
            yield load

    def answer(self, own):
        """Processor time of all ranks, and the peak of memory of the one with the highest."""
        for other in self.others:
            line = next(line for line in other.stdout if line.startswith("{") and '"tokens"' in line)
            result = json.loads(line)
            own["cpu_seconds"] += result["cpu_seconds"]
            own["peak_rss_mb"] = max(own["peak_rss_mb"], result["peak_rss_mb"])
        serve.answer(own)

    def end(self):
        for other in self.others:
            other.stdin.close()
            other.wait(30)

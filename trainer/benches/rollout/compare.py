"""Rollout throughput beside transformers: same shape, same loads, same dtype and threads, taking turns in one run.

    python compare.py --bench BINARY [--rounds 3] [--threads 2] [--dtype fp32|bf16] [--loads NAME ...]

BINARY is `cargo bench -p rlt-trainer --bench rollout --no-run`. The peer is `model.generate` on a static batch of 16
that is padded to its longest sample (what TRL does by default), sampling at temperature 1. Only tokens that were asked
for count. A round in which other processes used more than a fifth of a core is marked and left out of the medians
when there are better ones.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

HERE = pathlib.Path(__file__).parent
BATCH = 16


def cpu_seconds(path):
    fields = pathlib.Path(path).read_text().rsplit(")", 1)[-1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Others:
    """Cores that processes outside this comparison used."""

    def __init__(self, *pids):
        self.pids, self.start = pids, time.perf_counter()
        self.busy, self.own = self.total(), self.mine()

    def total(self):
        user, nice, system, _, _, irq, softirq = map(int, pathlib.Path("/proc/stat").read_text().split()[1:8])
        return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")

    def mine(self):
        return sum(cpu_seconds(f"/proc/{pid}/stat") for pid in self.pids)

    def cores(self):
        seconds = time.perf_counter() - self.start
        return max(0.0, (self.total() - self.busy) - (self.mine() - self.own)) / seconds


class Peer:
    def __init__(self, dtype):
        config = json.loads((HERE / "model.json").read_text())
        torch.manual_seed(0)
        self.model = LlamaForCausalLM(LlamaConfig(**config)).to(dtype).eval()

    def measure(self, load):
        lengths = load["new_tokens"]
        prompt = torch.randint(0, self.model.config.vocab_size, (len(lengths), load["prompt_len"]))
        started, cpu_before = time.perf_counter(), cpu_seconds("/proc/self/stat")
        for start in range(0, len(lengths), BATCH):
            rows, longest = prompt[start:start + BATCH], max(lengths[start:start + BATCH])
            with torch.inference_mode():
                self.model.generate(rows, attention_mask=torch.ones_like(rows), do_sample=True, top_k=0, pad_token_id=0,
                                    eos_token_id=None, max_new_tokens=longest, min_new_tokens=longest)
        seconds = time.perf_counter() - started
        return {"seconds": seconds, "cpu_seconds": cpu_seconds("/proc/self/stat") - cpu_before, "tokens": sum(lengths),
                "tokens_per_second": sum(lengths) / seconds}


class Ours:
    def __init__(self, binary, dtype, threads):
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        arguments = [binary, "--serve"] + (["--bf16"] if dtype == "bf16" else [])
        self.process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        print("ours:", self.process.stdout.readline().strip(), flush=True)

    def measure(self, load):
        self.process.stdin.write(load["name"] + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def rounds_of(contestants, load, pids, num_rounds):
    rounds = {name: [] for name in contestants}
    for round_idx in range(num_rounds + 1):
        for name, contestant in contestants.items():
            others = Others(*pids)
            result = contestant.measure(load) | {"others_cores": round(others.cores(), 2)}
            # The first round warms caches and page tables up.
            if round_idx > 0:
                rounds[name].append(result)
                print(json.dumps({"load": load["name"], "who": name, "round": round_idx, **result}), flush=True)
    return rounds


def median_rates(results):
    """Tokens per second, tokens per second of processor time, and how many rounds were quiet."""
    quiet = [result for result in results if result["others_cores"] <= 0.2]
    seconds = statistics.median(result["seconds"] for result in quiet or results)
    cpu = statistics.median(result["cpu_seconds"] for result in quiet or results)
    return results[0]["tokens"] / seconds, results[0]["tokens"] / cpu, len(quiet)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bench", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--loads", nargs="*")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    loads = [load for load in json.loads((HERE / "loads.json").read_text())
             if not arguments.loads or load["name"] in arguments.loads]
    ours = Ours(arguments.bench, arguments.dtype, arguments.threads)
    contestants = {"transformers": Peer(torch.bfloat16 if arguments.dtype == "bf16" else torch.float32), "ours": ours}
    rows = []
    for load in loads:
        rounds = rounds_of(contestants, load, (os.getpid(), ours.process.pid), arguments.rounds)
        (peer, peer_cpu, peer_quiet), (our, our_cpu, our_quiet) = map(median_rates, rounds.values())
        rows.append(f"| {load['name']} | {peer:.0f} | {our:.0f} | {our / peer:.2f} | {our_cpu / peer_cpu:.2f} | "
                    f"{min(peer_quiet, our_quiet)} of {arguments.rounds} |")
    print(f"\nRollout, {arguments.dtype}, {arguments.threads} threads, tokens/s\n")
    print("| load | transformers static | ours | ratio | ratio of processor time | quiet rounds |")
    print("| --- | --- | --- | --- | --- | --- |")
    print("\n".join(rows))
    ours.process.stdin.close()
    ours.process.wait()


main()

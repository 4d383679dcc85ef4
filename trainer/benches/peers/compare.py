"""GRPO step and training step beside TRL and transformers: each contestant in a process of its own, all on the same load,
dtype and threads, taking turns in one run.

    python compare.py --grpo-step BINARY --update BINARY [--rounds 3] [--threads 2] [--only NAME ...] [--raw FILE]

Prints Markdown: medians over the rounds after a warm-up. Rounds in which other processes used more than a fifth of a core
are left out where there are better ones, and counted.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).parent
QUIET_CORES = 0.2
PHASES = ("rollout_seconds", "reference_seconds", "update_seconds")


def contests(grpo_step, update):
    """Contest -> contestant -> command; the first is the one that the others are compared with."""
    python = lambda script, *arguments: [sys.executable, str(HERE / script), *arguments]
    packed = lambda precision, *more: python("update.py", "--mode", "packed", "--precision", precision, *more)
    padded = lambda precision: python("update.py", "--mode", "padded", "--precision", precision)
    return {
        "grpo-full": {"ours": [grpo_step, "--serve"], "TRL, defaults": python("grpo_step.py"),
                      "TRL, tuned": python("grpo_step.py", "--tuned")},
        "grpo-lora": {"ours": [grpo_step, "--serve", "--lora"], "TRL, defaults": python("grpo_step.py", "--lora"),
                      "TRL, tuned": python("grpo_step.py", "--lora", "--tuned")},
        "update-full": {"ours": [update, "--serve"], "transformers padded, highest": padded("highest"),
                        "transformers padded, medium": padded("medium"),
                        "transformers packed, highest": packed("highest"),
                        "transformers packed, medium": packed("medium")},
        "update-lora": {"ours": [update, "--serve", "--lora"], "transformers packed, highest": packed("highest", "--lora"),
                        "transformers packed, medium": packed("medium", "--lora")},
    }


class Contestant:
    def __init__(self, command, threads):
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env=environment)
        self.loaded = self.answer("ready")

    def answer(self, key):
        for line in self.process.stdout:
            # Libraries write to standard output too.
            if line.startswith("{") and f'"{key}"' in line:
                return json.loads(line)
        raise SystemExit(f"{self.process.args} ended with {self.process.wait()} before it answered")

    def measure(self):
        others = Others(self.process.pid, os.getpid())
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        result = self.answer("tokens")
        return result | {"others_cores": round(others.cores(), 2)}

    def end(self):
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()


class Others:
    """Cores that processes outside this measurement used."""

    def __init__(self, *pids):
        self.pids, self.start = pids, time.perf_counter()
        self.busy, self.own = self.total(), self.mine()

    def total(self):
        user, nice, system, _, _, irq, softirq = map(int, pathlib.Path("/proc/stat").read_text().split()[1:8])
        return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")

    def mine(self):
        fields = [pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[-1].split() for pid in self.pids]
        return sum(int(own[11]) + int(own[12]) for own in fields) / os.sysconf("SC_CLK_TCK")

    def cores(self):
        seconds = time.perf_counter() - self.start
        return max(0.0, (self.total() - self.busy) - (self.mine() - self.own)) / seconds


def run(contest, commands, arguments, raw):
    contestants = {name: Contestant(command, arguments.threads) for name, command in commands.items()}
    rounds = {name: [] for name in contestants}
    for round_idx in range(arguments.rounds + 1):
        for name, contestant in contestants.items():
            result = contestant.measure()
            # The first round warms caches, page tables and moments up.
            if round_idx > 0:
                rounds[name].append(result)
            print(json.dumps({"contest": contest, "who": name, "round": round_idx, **result}), file=raw, flush=True)
    for contestant in contestants.values():
        contestant.end()
    return {name: median(results, contestants[name].loaded) for name, results in rounds.items()}


def median(results, loaded):
    quiet = [result for result in results if result["others_cores"] <= QUIET_CORES]
    middle = lambda key: statistics.median(result[key] for result in quiet or results)
    keys = ("seconds", "cpu_seconds", "tokens", "peak_rss_mb", *(phase for phase in PHASES if phase in results[0]))
    return {key: middle(key) for key in keys} | {
        "quiet": f"{len(quiet)} of {len(results)}", "loaded_rss_mb": loaded["loaded_rss_mb"],
        "others_cores": statistics.median(result["others_cores"] for result in results)}


def table(contest, results):
    ours = results["ours"]
    has_phases = PHASES[0] in ours
    print(f"\n### {contest}\n")
    phases = " rollout + reference + update s |" if has_phases else ""
    print(f"| | step s |{phases} tokens/s | peak MB (loaded) | others' cores | quiet rounds | ours is faster by | "
          "by processor time | memory of ours |")
    print("| --- | --- |" + (" --- |" if has_phases else "") + " --- | --- | --- | --- | --- | --- | --- |")
    for name, result in results.items():
        phases = " + ".join(f"{result[phase]:.1f}" for phase in PHASES) + " |" if has_phases else ""
        ratios = (f"{result['seconds'] / ours['seconds']:.2f} | {result['cpu_seconds'] / ours['cpu_seconds']:.2f} | "
                  f"{ours['peak_rss_mb'] / result['peak_rss_mb']:.2f}")
        print(f"| {name} | {result['seconds']:.1f} | {phases} {result['tokens'] / result['seconds']:.0f} | "
              f"{result['peak_rss_mb']:.0f} ({result['loaded_rss_mb']:.0f}) | {result['others_cores']:.2f} | "
              f"{result['quiet']} | {ratios if name != 'ours' else '| |'} |", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--grpo-step", required=True)
    parser.add_argument("--update", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--raw", default=os.devnull)
    arguments = parser.parse_args()
    with open(arguments.raw, "a") as raw:
        for contest, commands in contests(arguments.grpo_step, arguments.update).items():
            if not arguments.only or contest in arguments.only:
                table(contest, run(contest, commands, arguments, raw))


main()

"""Each contestant in processes of its own, all on the same load, dtype and threads, taking turns in one run: GRPO step beside
TRL, training step and generation beside transformers, training step on two ranks beside FSDP2.

    python compare.py --grpo-step BINARY --update BINARY --sharded BINARY --rollout BINARY [--rounds 3] [--threads 2]
                      [--dtype fp32|bf16] [--only NAME ...] [--raw FILE]

Prints Markdown: medians over the rounds after a warm-up. Rounds in which other processes used more than a fifth of a core
are left out where there are better ones, and counted. Names are those of the tables; bf16 measures generation alone.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import bounds
import serve

HERE = pathlib.Path(__file__).parent
QUIET_CORES = 0.2
STEP_PHASES = ("rollout_seconds", "reference_seconds", "update_seconds")
OF_RANKS = ("own_mb", "formula_mb", "sent_mb")


def contests(arguments):
    """Contest -> (the line that asks for it, contestant -> command); "ours" is what the others are compared with."""
    python = lambda script, *more: [sys.executable, str(HERE / script), *more]
    packed = lambda precision, *more: python("update.py", "--mode", "packed", "--precision", precision, *more)
    padded = lambda precision: python("update.py", "--mode", "padded", "--precision", precision)
    grpo_step, update, rollout = arguments.grpo_step, arguments.update, arguments.rollout
    training = {
        "grpo-full": {"ours": [grpo_step, "--serve"], "TRL, defaults": python("grpo_step.py"),
                      "TRL, tuned": python("grpo_step.py", "--tuned")},
        "grpo-lora": {"ours": [grpo_step, "--serve", "--lora"], "TRL, defaults": python("grpo_step.py", "--lora"),
                      "TRL, tuned": python("grpo_step.py", "--lora", "--tuned")},
        # Two tables, because five contestants at once do not fit in 24 GiB.
        "update-padded": {"ours": [update, "--serve"], "transformers padded, highest": padded("highest"),
                          "transformers padded, medium": padded("medium")},
        "update-packed": {"ours": [update, "--serve"], "transformers packed, highest": packed("highest"),
                          "transformers packed, medium": packed("medium")},
        "update-lora": {"ours": [update, "--serve", "--lora"], "transformers packed, highest": packed("highest", "--lora"),
                        "transformers packed, medium": packed("medium", "--lora")},
    }
    ours = [rollout, "--serve"] + (["--bf16"] if arguments.dtype == "bf16" else [])
    generation = {"ours": ours, "transformers static": python("generate.py", "--dtype", arguments.dtype)}
    # Processor time is that of both ranks, memory that of the rank with more.
    fsdp2 = lambda precision: python("update_fsdp2.py", "--precision", precision)
    shared = {"ours": [arguments.sharded, "--serve"], "FSDP2, highest": fsdp2("highest"), "FSDP2, medium": fsdp2("medium")}
    two_ranks = {"update-fsdp2": ("step", shared), "memory-fsdp2": ("memory", shared)}
    loads = [load["name"] for load in json.loads((HERE.parent / "rollout/loads.json").read_text())]
    all_contests = {f"rollout-{load}": (load, generation) for load in loads}
    if arguments.dtype == "fp32":
        steps = {name: ("step", contestants) for name, contestants in training.items()}
        all_contests = steps | two_ranks | all_contests
    return all_contests


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

    def measure(self, load):
        others = Others(self.process.pid, *self.ranks(), os.getpid())
        self.process.stdin.write(load + "\n")
        self.process.stdin.flush()
        result = self.answer("tokens")
        return result | {"others_cores": round(others.cores(), 2)}

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


class Others:
    """Cores that processes outside this measurement used."""

    def __init__(self, *pids):
        self.pids, self.start = pids, time.perf_counter()
        self.busy, self.own = self.total(), self.mine()

    def total(self):
        user, nice, system, _, _, irq, softirq = map(int, pathlib.Path("/proc/stat").read_text().split()[1:8])
        return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")

    def mine(self):
        return sum(serve.cpu_seconds(f"/proc/{pid}/stat") for pid in self.pids)

    def cores(self):
        seconds = time.perf_counter() - self.start
        return max(0.0, (self.total() - self.busy) - (self.mine() - self.own)) / seconds


def run(contest, load, commands, arguments, raw):
    contestants = {name: Contestant(command, arguments.threads) for name, command in commands.items()}
    rounds = {name: [] for name in contestants}
    for round_idx in range(arguments.rounds + 1):
        for name, contestant in contestants.items():
            result = contestant.measure(load)
            # The first round warms caches, page tables and moments up.
            if round_idx > 0:
                rounds[name].append(result)
            print(json.dumps({"contest": contest, "contestant": name, "round": round_idx, **result}), file=raw, flush=True)
    for contestant in contestants.values():
        contestant.end()
    return {name: median(results, contestants[name].loaded) for name, results in rounds.items()}


def median(results, loaded):
    quiet = [result for result in results if result["others_cores"] <= QUIET_CORES]
    middle = lambda key: statistics.median(result[key] for result in quiet or results)
    optional = (key for key in (*bounds.PHASES, *bounds.COUNTS, *OF_RANKS) if key in results[0])
    keys = ("seconds", "cpu_seconds", "tokens", "peak_rss_mb", *optional)
    return {key: middle(key) for key in keys} | {
        "quiet": f"{len(quiet)} of {len(results)}", "loaded_rss_mb": loaded["loaded_rss_mb"],
        "others_cores": statistics.median(result["others_cores"] for result in results)}


def table(contest, results):
    ours = results["ours"]
    has_phases = STEP_PHASES[0] in ours
    print(f"\n### {contest}\n")
    phases = " rollout + reference + update s |" if has_phases else ""
    print(f"| | step s |{phases} tokens/s | peak MB (loaded) | others' cores | quiet rounds | ours is faster by | "
          "by processor time | memory of ours |")
    print("| --- | --- |" + (" --- |" if has_phases else "") + " --- | --- | --- | --- | --- | --- | --- |")
    for name, result in results.items():
        phases = " + ".join(f"{result[phase]:.1f}" for phase in STEP_PHASES) + " |" if has_phases else ""
        ratios = (f"{result['seconds'] / ours['seconds']:.2f} | {result['cpu_seconds'] / ours['cpu_seconds']:.2f} | "
                  f"{ours['peak_rss_mb'] / result['peak_rss_mb']:.2f}")
        print(f"| {name} | {result['seconds']:.1f} | {phases} {result['tokens'] / result['seconds']:.0f} | "
              f"{result['peak_rss_mb']:.0f} ({result['loaded_rss_mb']:.0f}) | {result['others_cores']:.2f} | "
              f"{result['quiet']} | {ratios if name != 'ours' else '| |'} |", flush=True)


def what_a_rank_has(ours):
    print(f"\nA rank of ours takes {ours['own_mb']:.0f} MB above an empty process and sends {ours['sent_mb']:.0f} MB. Its half of "
          f"weights, gradients and moments, with weights and gradients of a layer and of what is outside of the layers whole, are "
          f"{ours['formula_mb']:.0f} MB: {ours['own_mb'] / ours['formula_mb']:.2f} of that.")


def main():
    parser = argparse.ArgumentParser()
    for binary in ("--grpo-step", "--update", "--sharded", "--rollout"):
        parser.add_argument(binary, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--raw", default=os.devnull)
    arguments = parser.parse_args()
    if arguments.dtype == "fp32":
        print("\n" + bounds.EXPLANATION)
    with open(arguments.raw, "a") as raw:
        for contest, (load, commands) in contests(arguments).items():
            if arguments.only and contest not in arguments.only:
                continue
            results = run(contest, load, commands, arguments, raw)
            table(contest, results)
            if "formula_mb" in results["ours"]:
                what_a_rank_has(results["ours"])
            if arguments.dtype == "fp32":
                machine = Contestant([sys.executable, str(HERE / "limits.py")], arguments.threads)
                limits = machine.measure("limits")
                machine.end()
                print(json.dumps({"contest": contest, "contestant": "machine", **limits}), file=raw, flush=True)
                print("\n" + bounds.where_the_time_goes(contest, results["ours"], limits), flush=True)


main()

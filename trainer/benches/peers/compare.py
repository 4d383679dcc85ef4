"""Each contestant in processes of its own, all on the same load, dtype and threads, taking turns in one run: GRPO step beside
TRL, training step and generation beside transformers, training step on two ranks beside FSDP2.

    python compare.py --grpo-step BINARY --update BINARY --sharded BINARY --rollout BINARY [--rounds 3] [--threads 2]
                      [--only NAME ...] [--raw FILE]

Prints Markdown: medians and spread over the rounds after a warm-up. Rounds in which other processes and the machine's host
took more than a fifth of a core are left out where there are better ones, and counted. Names are those of the tables.
"""

import argparse
import json
import os
import pathlib

import bounds
import tables
from contestant import Contestant
from contests import contests, kind_and_dtype, python


def run(contest, load, commands, arguments, raw):
    contestants = {name: Contestant(name, command, arguments.threads) for name, command in commands.items()}
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
    return {name: tables.median(results, contestants[name].loaded) for name, results in rounds.items()}


def limits(contest, arguments, raw):
    _, dtype = kind_and_dtype(contest)
    machine = Contestant("limits", python("limits.py", "--dtype", dtype), arguments.threads)
    result = machine.measure("limits")
    machine.end()
    print(json.dumps({"contest": contest, "contestant": "machine", **result}), file=raw, flush=True)
    return result


def parsed():
    parser = argparse.ArgumentParser()
    for binary in ("--grpo-step", "--update", "--sharded", "--rollout"):
        parser.add_argument(binary, required=True, type=lambda path: str(pathlib.Path(path).resolve()))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--raw", default=os.devnull)
    return parser.parse_args()


def main():
    arguments = parsed()
    wanted = contests(arguments)
    if unknown := set(arguments.only or []) - set(wanted):
        raise SystemExit(f"no contest is called {', '.join(sorted(unknown))}: expected some of {', '.join(wanted)}")
    print("\n" + bounds.EXPLANATION)
    all_results = {}
    with open(arguments.raw, "a") as raw:
        for contest, (load, commands) in wanted.items():
            if arguments.only and contest not in arguments.only:
                continue
            all_results[contest] = results = run(contest, load, commands, arguments, raw)
            print(tables.table(contest, results), flush=True)
            if "formula_mb" in results["ours"]:
                print(tables.what_a_rank_has(results["ours"]))
            spent = bounds.where_the_time_goes(contest, results["ours"], limits(contest, arguments, raw))
            print("\n" + spent, flush=True)
    print(tables.each_at_its_best(all_results), flush=True)


main()

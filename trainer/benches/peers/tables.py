"""What a contest's rounds come to, in Markdown."""

import statistics

import bounds
from contests import kind_and_dtype

QUIET_CORES = 0.2
STEP_PHASES = ("rollout_seconds", "reference_seconds", "update_seconds")
OF_RANKS = ("own_mb", "formula_mb", "sent_mb")


def median(rounds, loaded):
    """Medians of the quiet rounds; of all where none was quiet."""
    quiet = [one for one in rounds if one["others_cores"] + one["stolen_cores"] <= QUIET_CORES]
    counted = quiet or rounds
    middle = lambda key: statistics.median(one[key] for one in counted)
    optional = (key for key in (*bounds.PHASES, *bounds.COUNTS, *OF_RANKS) if key in rounds[0])
    keys = ("seconds", "cpu_seconds", "tokens", "peak_rss_mb", *optional)
    seconds = sorted(one["seconds"] for one in counted)
    disturbed = statistics.median(one["others_cores"] + one["stolen_cores"] for one in rounds)
    return {key: middle(key) for key in keys} | {
        "fastest": seconds[0], "slowest": seconds[-1], "quiet": f"{len(quiet)} of {len(rounds)}", "disturbed": disturbed,
        "loaded_rss_mb": loaded["loaded_rss_mb"]}


def table(contest, results):
    ours = results["ours"]
    has_phases = STEP_PHASES[0] in ours
    columns = ["", "step s", "fastest to slowest", *(["rollout + reference + update s"] if has_phases else []), "tokens/s",
               "peak MB (loaded)", "others' cores", "quiet rounds", "ours is faster by", "by processor time", "memory of ours"]
    lines = [f"\n### {contest}\n", row(columns), row(["---"] * len(columns))]
    for name, result in results.items():
        phases = [" + ".join(f"{result[phase]:.1f}" for phase in STEP_PHASES)] if has_phases else []
        ratios = [ratio(result, ours, "seconds"), ratio(result, ours, "cpu_seconds"), ratio(ours, result, "peak_rss_mb")]
        lines.append(row([
            name, f"{result['seconds']:.1f}", f"{result['fastest']:.1f} to {result['slowest']:.1f}", *phases,
            f"{result['tokens'] / result['seconds']:.0f}", f"{result['peak_rss_mb']:.0f} ({result['loaded_rss_mb']:.0f})",
            f"{result['disturbed']:.2f}", result["quiet"], *(ratios if name != "ours" else ["", "", ""])]))
    return "\n".join(lines)


def row(cells):
    return "| " + " | ".join(cells) + " |"


def ratio(upper, lower, key):
    return f"{upper[key] / lower[key]:.2f}"


def what_a_rank_has(ours):
    return (f"\nA rank of ours takes {ours['own_mb']:.0f} MB above an empty process and sends {ours['sent_mb']:.0f} MB. Its half "
            f"of weights, gradients and moments, with weights and gradients of a layer and of what is outside of the layers "
            f"whole, are {ours['formula_mb']:.0f} MB: {ours['own_mb'] / ours['formula_mb']:.2f} of that.")


def each_at_its_best(all_results):
    """One row for a kind of work: our fastest contestant beside the peers' fastest and smallest, of whatever dtype."""
    kinds = {}
    for contest, results in all_results.items():
        kind, dtype = kind_and_dtype(contest)
        kinds.setdefault(kind, {})[dtype] = results
    columns = ["", "ours", "the fastest peer", "ours is faster by", "memory of ours"]
    lines = ["\n### each side at its best, of any dtype\n", row(columns), row(["---"] * len(columns))]
    for kind, by_dtype in kinds.items():
        dtype, ours = min(((dtype, results["ours"]) for dtype, results in by_dtype.items()), key=lambda one: one[1]["seconds"])
        peers = [(name, dtype, result) for dtype, results in by_dtype.items() for name, result in results.items()
                 if name != "ours"]
        name, of_peer, peer = min(peers, key=lambda one: one[2]["seconds"])
        lines.append(row([kind, f"{ours['seconds']:.1f} s, {dtype}", f"{peer['seconds']:.1f} s, {of_peer}: {name}",
                          ratio(peer, ours, "seconds"), ratio(ours, peer, "peak_rss_mb")]))
    return "\n".join(lines)

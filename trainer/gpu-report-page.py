"""Writes the page of `gpu-report.sh`: what passed, what failed and why, and speeds beside bounds, predictions and peers.

    python gpu-report-page.py FINDINGS PAGE IDENTITY

Findings are lines of JSON: those of checks have `name` and `status`, those of stages have `ended`. Lines that are not JSON,
such as the last one of a run that was killed, are left out.
"""

import json
import re
import sys

MAX_ERRORS = 30
MAX_TEXT = 240
# Figures that say how fast something is, with their units; the first that a finding has is its result.
RATES = [("tokensPerSecond", "tokens/s"), ("stepSeconds", "s a step"), ("peerStepSeconds", "s a step of the peer"),
         ("teraflopsPerSecond", "TFLOP/s"), ("gigabytesPerSecond", "GB/s"), ("reservedGigabytes", "GB reserved")]
# Figures that say what a finding measured.
SUBJECTS = ["load", "model", "kernel", "operator", "copy", "shape", "batch", "contextTokens", "calls", "dtype", "peer",
            "trace"]
MFU = ["mfu", "updateMfu"]
FRACTIONS = ["fractionOfPeak", "fractionOfBandwidth"]
# Begins the name of a measured time as a multiple of its prediction.
RATIO = "ratioToPredicted"
# What others have published, and the goals for one H100. Of each load that the check `published` measures: the work, our
# figure with its unit, the goal, the figure of others, and whose it is on which hardware.
PUBLISHED = {
    "grpo-step": ("GRPO step of Qwen2.5-0.5B, 64 prompts x 5 samples of about 330 tokens", ("stepSeconds", "s"), 6, "59.8 s",
                  "verl (2025), two GPUs"),
    "generation": ("generation with 0.5B parameters", ("tokensPerSecond", "tokens/s"), 40_000, "24k tokens/s",
                   "nano-vllm, one A800"),
    "training-16k": ("full training of Qwen3-0.6B at 16k tokens", ("mfu", "MFU"), 0.27, "11.9k tokens/s, MFU 0.11",
                     "prime-rl, one H100"),
    "sft-8k": ("SFT of Qwen3-0.6B at 8k tokens", ("tokensPerSecond", "tokens/s"), 35_000, "26k tokens/s",
               "prime-rl, one H100"),
}
# Figures of which less is better.
TIMES = {"stepSeconds"}


def findings(path):
    with open(path, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                value = json.loads(line)
            except ValueError:
                continue
            if isinstance(value, dict) and "stage" in value:
                yield value


def cell(value):
    text = " ".join(str(value).split()).replace("|", "\\|")
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "..."


def number(value):
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return "" if value is None else cell(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def table(header, rows):
    lines = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(cell(value) for value in row) + " |" for row in lines] + [""]


def subject(finding):
    parts = [f"{key} {finding[key]}" for key in SUBJECTS if finding.get(key) is not None]
    return ", ".join([finding.get("name", finding["stage"]), *parts])


def first_of(finding, keys):
    return next((finding[key] for key in keys if finding.get(key) is not None), None)


def error_of(finding):
    """The error of a failed finding; without one, the figures that are out of bounds."""
    if finding.get("error"):
        return finding["error"]
    known = {"name", "status", "device", "stage", "run"}
    return ", ".join(f"{key} {number(value)}" for key, value in finding.items() if key not in known)


def stage_rows(ended):
    for stage in ended:
        run = "" if stage["run"] == "first" else f" ({stage['run']})"
        yield [stage["stage"] + run, stage["ended"], f"{stage['seconds']} s", stage["text"]]


def failure_rows(ended, made):
    for stage in ended:
        of_stage = [f for f in made if (f["stage"], f["run"]) == (stage["stage"], stage["run"])]
        failed = [f for f in of_stage if f["status"] == "failed"]
        for finding in failed:
            yield [stage["stage"], stage["run"], subject(finding), error_of(finding)]
        # A check that says itself what failed ends with exit code 1.
        if stage["ended"] == "failed" and not (failed and stage["text"] == "exit code 1"):
            words = [stage["text"], *([stage["lastLine"]] if stage.get("lastLine") else [])]
            yield [stage["stage"], stage["run"], "the stage", ": ".join(words)]


def predicted(finding, name):
    """The plan's prediction of a figure, or why there is none."""
    return first_of(finding, [f"predicted{name[:1].upper()}{name[1:]}", "predictionError"])


def ratio(finding, made):
    """How many times as long the peer takes, which a stage of its own may have measured."""
    # The peers' load is that of the checks `grpo-step-small` and `grpo-step-large`.
    own, peer = None if "load" in finding else finding.get("stepSeconds"), None
    if own:
        peers = [f for f in made if f.get("peerStepSeconds") and f.get("model") == finding.get("model")]
        peer = peers[0]["peerStepSeconds"] if peers else None
    return peer / own if own and peer else finding.get("ratioOfStep")


def speed_rows(made):
    for finding in made:
        rate = next(((key, unit) for key, unit in RATES if finding.get(key) is not None), None)
        if rate is None or finding["status"] == "skipped" or finding["run"] != "first" or "kernel" in finding:
            continue
        key, unit = rate
        columns = [first_of(finding, MFU), first_of(finding, FRACTIONS), predicted(finding, key), ratio(finding, made)]
        yield [subject(finding), f"{number(finding[key])} {unit}", *(number(value) for value in columns)]


def prediction_rows(made):
    """Each measured time of which the plan has a prediction."""
    for finding in made:
        for key in finding if finding["run"] == "first" else ():
            name = key.removeprefix(RATIO)
            if name == key:
                continue
            words = re.sub("[A-Z]", lambda letter: " " + letter[0].lower(), name).strip()
            columns = [finding.get(name[:1].lower() + name[1:]), finding.get("predicted" + name), finding[key]]
            yield [subject(finding), words, *(number(value) for value in columns)]


def published_rows(made):
    """Each figure of others beside the goal and our figure, which may not have been measured."""
    for load, (work, (key, unit), goal, others, source) in PUBLISHED.items():
        finding = next((f for f in made if f.get("load") == load and f["run"] == "first"), {})
        figures = dict([(key, unit), ("tokensPerSecond", "tokens/s")])
        words = [f"{number(finding[name])} {unit}" for name, unit in figures.items() if finding.get(name) is not None]
        own = finding.get(key)
        reached = "" if not own else number(goal / own if key in TIMES else own / goal)
        yield [work, ", ".join(words) or "not measured", f"{number(goal)} {unit}", reached, others, source]


def kernel_rows(made):
    for finding in made:
        if "kernel" in finding and finding["run"] == "first":
            keys = ["error", "microseconds", "gigabytesPerSecond", "teraflopsPerSecond"]
            columns = [*(finding.get(key) for key in keys), first_of(finding, FRACTIONS), finding.get("libtorchMicroseconds")]
            yield [finding["kernel"], finding.get("shape", ""), finding.get("dtype", ""), *(number(v) for v in columns)]


def page(lines, identity):
    ended = [line for line in lines if "ended" in line]
    made = [line for line in lines if "status" in line and "name" in line]
    first = [finding for finding in made if finding["run"] == "first"]
    device = next((finding['device'] for finding in made if finding.get('device')), 'no GPU was found')
    count = lambda values, key, value: sum(one[key] == value for one in values)
    stages = [stage for stage in ended if stage["run"] == "first"]
    text = [f"# GPU report: {device}", "", identity, ""]
    text += ["- Findings: " + ", ".join(f"{count(first, 'status', s)} {s}" for s in ("passed", "failed", "skipped"))]
    text += ["- Stages: " + ", ".join(f"{count(stages, 'ended', s)} {s}" for s in ("passed", "failed", "not started")), ""]
    text += ["## Stages", "", *table(["stage", "ended", "time", "why"], stage_rows(ended))]
    failures = list(failure_rows(ended, made))
    if failures:
        text += ["## Failures", "", *table(["stage", "run", "finding", "error"], failures[:MAX_ERRORS])]
    if len(failures) > MAX_ERRORS:
        text += [f"{len(failures) - MAX_ERRORS} more are in findings.jsonl.", ""]
    speeds, predictions, kernels = list(speed_rows(made)), list(prediction_rows(made)), list(kernel_rows(made))
    if speeds:
        header = ["measured", "result", "MFU", "of the data sheet", "predicted", "peer's time as a multiple"]
        text += ["## Speed", "", *table(header, speeds)]
    header = ["work", "measured", "goal on one H100", "of the goal", "others", "whose, on what"]
    text += ["## Figures of others", "", "A goal is reached where its fraction is 1 or more.", ""]
    text += table(header, published_rows(made))
    if predictions:
        header = ["load", "time", "measured", "predicted by the plan", "measured / predicted"]
        text += ["## Times and predictions", "", *table(header, predictions)]
    if kernels:
        header = ["kernel", "shape", "dtype", "error", "us", "GB/s", "TFLOP/s", "of the data sheet", "libtorch us"]
        text += ["## Kernels", "", *table(header, kernels)]
    return "\n".join(text)


def main():
    findings_path, page_path, identity = sys.argv[1:]
    with open(page_path, "w", encoding="utf-8") as out:
        out.write(page(list(findings(findings_path)), identity))


if __name__ == "__main__":
    main()

"""The work of reward.rs in Python: a loop over 100,000 completions, judged as MATH and as GSM8K. Needs nothing."""

import re
import time

NUM_SAMPLES = 100_000
THOUGHT = "First we simplify, then we solve for $x$, and then we check the sign. " * 8
REPLACEMENTS = [
    ("\n", ""), ("\\!", ""), ("\\\\", "\\"), ("tfrac", "frac"), ("dfrac", "frac"), ("\\left", ""), ("\\right", ""),
    ("^{\\circ}", ""), ("^\\circ", ""), ("\\$", ""),
]
LATE_REPLACEMENTS = [("\\%", ""), (" .", " 0."), ("{.", "{0.")]


def last_answer(text):
    start = text.rfind("\\boxed")
    depth, end = 0, None
    for index in range(start, len(text)):
        if text[index] == "{":
            depth += 1
        elif text[index] == "}":
            depth -= 1
            if depth == 0:
                end = index
                break
    return text[start + len("\\boxed{") : end]


def braced_roots(text):
    first, *rest = text.split("\\sqrt")
    return first + "".join("\\sqrt" + (part if part[0] == "{" else "{" + part[0] + "}" + part[1:]) for part in rest)


def braced_fractions(text):
    first, *rest = text.split("\\frac")
    for part in rest:
        if part[0] == "{":
            first += "\\frac" + part
        elif part[1] == "{":
            first += "\\frac{" + part[0] + "}" + part[1:]
        else:
            first += "\\frac{" + part[0] + "}{" + part[1] + "}" + part[2:]
    return first


def normalised(text):
    for written, read in REPLACEMENTS:
        text = text.replace(written, read)
    text = text.split("\\text{ ")[0]
    for written, read in LATE_REPLACEMENTS:
        text = text.replace(written, read)
    if text.startswith("."):
        text = "0" + text
    sides = text.split("=")
    if len(sides) == 2 and len(sides[0]) <= 2:
        text = sides[1]
    text = braced_fractions(braced_roots(text).replace(" ", ""))
    if text == "0.5":
        text = "\\frac{1}{2}"
    parts = text.split("/")
    if len(parts) == 2 and all(re.fullmatch("-?[0-9]+", part) for part in parts):
        text = "\\frac{%s}{%s}" % tuple(parts)
    return text


def math(completion, truth):
    return float(normalised(last_answer(completion)) == normalised(truth))


def gsm8k(completion, truth):
    found = re.findall(r"#### (\-?[0-9\.\,]+)", completion[-300:])
    return float(bool(found) and found[-1].replace(",", "").replace("$", "") == truth)


rows = []
for index in range(NUM_SAMPLES):
    answer = index % 97
    completion = f"{THOUGHT}So $x = \\boxed{{\\frac{{{answer}}}{{ 2 }}}}$.\n#### {answer}"
    rows.append((completion, f"\\frac{{{answer}}}{{2}}"))
for function in (math, gsm8k):
    started = time.perf_counter()
    total = sum(function(completion, truth) for completion, truth in rows)
    seconds = time.perf_counter() - started
    print(f"{function.__name__}: {seconds:.3f} s, {NUM_SAMPLES / seconds:,.0f} completions/s, mean {total / NUM_SAMPLES}")

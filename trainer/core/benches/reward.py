"""The work of reward.rs in Python: a loop over 100,000 completions, judged as MATH and as GSM8K. Needs nothing."""

import re
import time

NUM_SAMPLES = 100_000
THOUGHT = "First we simplify, then we solve for $x$, and then we check the sign. " * 8
REPLACEMENTS = [
    ("\n", ""), ("\\!", ""), ("\\\\", "\\"), ("tfrac", "frac"), ("dfrac", "frac"), ("\\left", ""), ("\\right", ""),
    ("^{\\circ}", ""), ("^\\circ", ""), ("\\$", ""), ("\\%", ""), (" .", " 0."), ("{.", "{0."),
]


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


def normalised(text):
    for written, read in REPLACEMENTS:
        text = text.replace(written, read)
    return text.replace(" ", "")


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

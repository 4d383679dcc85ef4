#!/bin/sh
# Writes the rows of examples/process-reward into runs/count: one counts on from a digit by another, modulo ten, four times.
# `3+4=` is answered by `7+1+5+9`, of which each number is a step. The same rows on every machine.
set -eu
mkdir -p runs/count
awk '
function draw(below) { state = (state * 16807) % 2147483647; return int(state / 2147483647 * below) }
# A completion: of each step whether it is the last one plus `by`; one in `odds` is not.
function count_on(odds,    at, right, step, written) {
    start = draw(10); by = 1 + draw(9); steps = labels = ""; last = start; written = ""
    for (at = 0; at < 4; at++) {
        right = draw(odds) > 0
        step = (last + by + (right ? 0 : 1 + draw(9))) % 10
        steps = steps (at ? ", " : "") "\"" step "\""
        labels = labels (at ? ", " : "") (right ? "true" : "false")
        written = written (at ? "+" : "") step
        last = step
    }
    return written
}
BEGIN {
    state = 17
    for (row = 0; row < 4096; row++) {
        written = count_on(4)
        printf "{\"prompt\": \"%d+%d=\", \"response\": \"%s\"}\n", start, by, written > "runs/count/demonstrations.jsonl"
    }
    # Held-out completions are none of those that are learned from.
    for (row = 0; row < 4352; ) {
        key = count_on(3) "=" start "+" by
        is_learned = row < 4096
        if (is_learned) seen[key] = 1; else if (key in seen) continue
        row++
        file = is_learned ? "runs/count/steps.jsonl" : "runs/count/held-out-steps.jsonl"
        printf "{\"prompt\": \"%d+%d=\", \"completions\": [%s], \"labels\": [%s]}\n", start, by, steps, labels > file
    }
    for (start = 0; start < 10; start++) for (by = 1; by < 10; by++) {
        answer = (start + by) % 10 "+" (start + 2 * by) % 10 "+" (start + 3 * by) % 10 "+" (start + 4 * by) % 10
        printf "{\"prompt\": \"%d+%d=\", \"answer\": \"%s\"}\n", start, by, answer > "runs/count/prompts.jsonl"
    }
}'

"""Where the time of our side of a contest goes, beside what the machine's own limits (`limits.py`) allow: every phase with
the seconds that its matrix products alone, or reading the weights once for every decoding step, would take.
"""

import json
import pathlib

from contests import kind_and_dtype

SHAPE = json.loads((pathlib.Path(__file__).parent.parent / "rollout/model.json").read_text())
BYTES = {"fp32": 4, "bf16": 2}
PHASES = ("rollout_seconds", "reference_seconds", "update_seconds", "sync_seconds", "prefill_seconds", "decode_seconds",
          "sampling_seconds")
COUNTS = ("computed_tokens", "new_tokens", "prefilled_tokens", "steps", "micro_batches")


def weights():
    """Weights of all layers' projections, and of the head."""
    hidden, head_dim = SHAPE["hidden_size"], SHAPE["hidden_size"] // SHAPE["num_attention_heads"]
    keys = SHAPE["num_key_value_heads"] * head_dim
    layer = 2 * hidden * hidden + 2 * hidden * keys + 3 * hidden * SHAPE["intermediate_size"]
    return SHAPE["num_hidden_layers"] * layer, SHAPE["vocab_size"] * hidden


class Machine:
    def __init__(self, limits, dtype):
        self.limits, self.bytes = limits, BYTES[dtype]

    def products(self, body_tokens, head_tokens, passes=1):
        body, head = weights()
        return passes * 2e-9 * (body * body_tokens + head * head_tokens) / self.limits["gflops"]

    def reads(self, steps):
        return 1e-9 * self.bytes * sum(weights()) * steps / self.limits["read_gb_s"]


def phases(contest, ours, machine):
    """Phase -> (seconds, seconds at best)."""
    # A backward pass has products for inputs and for weights; below an adapter the weights have none.
    passes = 2 if "-lora-" in contest else 3
    if "rollout_seconds" in ours:
        computed, new = ours["computed_tokens"], ours["new_tokens"]
        return {"rollout": (ours["rollout_seconds"], max(machine.products(new, new), machine.reads(new / 16))),
                "reference": (ours["reference_seconds"], machine.products(computed, new)),
                "update": (ours["update_seconds"], machine.products(computed, new, passes))}
    if "prefilled_tokens" in ours:
        return {"packing of weights": (ours["sync_seconds"], machine.reads(1)),
                "prefill": (ours["prefill_seconds"], machine.products(ours["prefilled_tokens"], 0)),
                "decode": (ours["decode_seconds"], max(machine.products(ours["tokens"], ours["tokens"]),
                                                       machine.reads(ours["steps"]))),
                "sampling": (ours["sampling_seconds"], 0.0)}
    return {"forward, backward and AdamW": (ours["seconds"], machine.products(ours["tokens"], ours["tokens"], passes))}


EXPLANATION = (
    "Below each table stands where our time goes. *At best* means nothing but matrix products, or reading all weights once for "
    "every decoding step where that is longer, at this machine's limits, measured right after the table. What is between are "
    f"attention, norms, the softmax over {SHAPE['vocab_size']} tokens, few rows a product while decoding, and AdamW's pass over "
    "all that is trained.")


def where_the_time_goes(contest, ours, limits):
    """A line of Markdown."""
    _, dtype = kind_and_dtype(contest)
    parts = phases(contest, ours, Machine(limits, dtype))
    shares = ", ".join(f"{name} {spent:.2f} s ({spent / ours['seconds']:.0%}; at best {bound:.2f} s)"
                       for name, (spent, bound) in parts.items())
    rest = max(0.0, ours["seconds"] - sum(spent for spent, _ in parts.values()))
    bound = sum(bound for _, bound in parts.values())
    shared = (f" Of {ours['tokens']:.0f} tokens {ours['computed_tokens']:.0f} go through the model in log-probs and update: a "
              "group's prompt is computed once." if "computed_tokens" in ours else "")
    return (f"Where our time goes: {shares}, the rest {rest:.2f} s; in all {ours['seconds'] / bound:.1f} times the best, "
            f"{bound:.2f} s at {limits['gflops']:.0f} GFLOP/s and {limits['read_gb_s']:.0f} GB/s.{shared}")

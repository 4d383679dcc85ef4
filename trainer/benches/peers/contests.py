"""Which contestants meet in which table. In a table all compute in the same dtype: fp32, where a peer may multiply in less
("medium": bfloat16 products of fp32 matrices), or bf16, whose contestants say what they keep in it.
"""

import json
import pathlib
import sys

HERE = pathlib.Path(__file__).parent
DTYPES = ("fp32", "bf16")


def python(script, *arguments):
    return [sys.executable, str(HERE / script), *arguments]


def ours(binary, dtype, *arguments):
    return [binary, "--serve", *arguments, *(["--bf16"] if dtype == "bf16" else [])]


def grpo(binary, dtype, *lora):
    """TRL at its defaults, and at what is fastest in this dtype. Its own default on a CPU is bf16 autocast."""
    trl = lambda *more: python("grpo_step.py", *more, *lora)
    peers = {
        "fp32": {"TRL, fp32, its other defaults": trl("--dtype", "fp32"),
                 "TRL, medium products, activations kept": trl("--dtype", "medium", "--keep-activations")},
        "bf16": {"TRL, its defaults (autocast)": trl("--dtype", "autocast"),
                 "TRL, weights in bf16": trl("--dtype", "bf16"),
                 "TRL, weights in bf16, activations kept": trl("--dtype", "bf16", "--keep-activations")},
    }[dtype]
    return {"ours": ours(binary, dtype, *lora), **peers}


def update(binary, dtype, *lora):
    step = lambda precision: python("update.py", "--dtype", precision, *lora)
    peers = {
        "fp32": {"transformers": step("fp32"), "transformers, medium": step("medium")},
        "bf16": {"transformers, autocast": step("autocast"), "transformers, weights in bf16": step("bf16")},
    }[dtype]
    return {"ours": ours(binary, dtype, *lora), **peers}


def two_ranks(binary):
    """Processor time is that of both ranks, memory that of the rank with more."""
    fsdp2 = lambda precision: python("update_fsdp2.py", "--precision", precision)
    return {"ours": ours(binary, "fp32"), "FSDP2": fsdp2("highest"), "FSDP2, medium": fsdp2("medium")}


def generation(binary, dtype):
    """CTranslate2 has no bfloat16 on CPUs without a build of its own: beside bf16 it computes in int8, as it would be used."""
    transformers = lambda *more: python("generate.py", "--dtype", dtype, *more)
    precision = {"fp32": "fp32", "bf16": "int8"}[dtype]
    return {"ours": ours(binary, dtype), "transformers static": transformers(),
            "transformers continuous": transformers("--continuous"),
            f"CTranslate2, {precision}": python("generate_ctranslate2.py", "--dtype", precision)}


def contests(binaries):
    """Name of a table, which ends with its dtype -> (the load that is asked for, contestant -> command)."""
    tables = {}
    for kind, lora in (("full", []), ("lora", ["--lora"])):
        for dtype in DTYPES:
            tables[f"grpo-{kind}-{dtype}"] = ("step", grpo(binaries.grpo_step, dtype, *lora))
    for kind, lora in (("full", []), ("lora", ["--lora"])):
        for dtype in DTYPES:
            tables[f"update-{kind}-{dtype}"] = ("step", update(binaries.update, dtype, *lora))
    tables["update-fsdp2-fp32"] = ("step", two_ranks(binaries.sharded))
    tables["memory-fsdp2-fp32"] = ("memory", two_ranks(binaries.sharded))
    for load in json.loads((HERE.parent / "rollout/loads.json").read_text()):
        for dtype in DTYPES:
            tables[f"rollout-{load['name']}-{dtype}"] = (load["name"], generation(binaries.rollout, dtype))
    return tables


def kind_and_dtype(contest):
    """What the name of a table says: the kind of work, and the dtype of all contestants."""
    return contest.rsplit("-", 1)

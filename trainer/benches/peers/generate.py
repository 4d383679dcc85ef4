"""Generation by transformers on the loads of `rollout/loads.json`: `model.generate` on a static batch of 16 that is padded to
its longest sample (what TRL does by default), sampling at temperature 1. Only tokens that were asked for count.

    python generate.py [--dtype fp32|bf16]
"""

import argparse
import json
import pathlib

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import serve

BENCHES = pathlib.Path(__file__).parent.parent
BATCH = 16


def generate(model, load):
    lengths = load["new_tokens"]
    prompt = torch.randint(0, model.config.vocab_size, (len(lengths), load["prompt_len"]))
    for start in range(0, len(lengths), BATCH):
        rows, longest = prompt[start:start + BATCH], max(lengths[start:start + BATCH])
        with torch.inference_mode():
            model.generate(rows, attention_mask=torch.ones_like(rows), do_sample=True, top_k=0, pad_token_id=0,
                           eos_token_id=None, max_new_tokens=longest, min_new_tokens=longest)
    return sum(lengths)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    config = LlamaConfig(**json.loads((BENCHES / "rollout/model.json").read_text()))
    dtype = torch.bfloat16 if arguments.dtype == "bf16" else torch.float32
    model = LlamaForCausalLM(config).to(dtype).eval()
    loads = {load["name"]: load for load in json.loads((BENCHES / "rollout/loads.json").read_text())}
    serve.ready()
    while load := serve.wait_for_turn():
        measurement = serve.Measurement()
        measurement.answer(generate(model, loads[load]))


main()

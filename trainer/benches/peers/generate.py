"""Generation by transformers on the loads of `rollout/loads.json`, sampling at temperature 1: `model.generate` on static
batches of 16, each padded to its longest sample (what TRL does by default), or with `--continuous` by continuous batching
(its `use_transformers_continuous_batching`), where every sample stops at its own length. Only tokens that were asked for count.

    python generate.py [--dtype fp32|bf16] [--continuous]
"""

import argparse

import torch
from transformers import GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching.utils import WorkloadHints

import serve
import shape

BATCH = 16
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def static(model, prompts, lens):
    for start in range(0, len(lens), BATCH):
        rows, longest = prompts[start:start + BATCH], max(lens[start:start + BATCH])
        with torch.inference_mode():
            model.generate(rows, attention_mask=torch.ones_like(rows), do_sample=True, top_k=0, pad_token_id=0,
                           eos_token_id=None, max_new_tokens=longest, min_new_tokens=longest)


def continuous(model, prompts, lens):
    """As `generate_batch` does it, which has one length for all requests; the cache is sized for what is asked for."""
    config = GenerationConfig(do_sample=True, top_k=0, temperature=1.0, pad_token_id=0, eos_token_id=-1,
                              max_new_tokens=max(lens))
    hints = WorkloadHints(max_prompt_length=prompts.shape[1], max_generated_length=max(lens), num_requests=len(lens))
    engine = model.continuous_batching_context_manager(
        generation_config=config, continuous_batching_config=ContinuousBatchingConfig(), workload_hints=hints, timeout=5)
    with torch.no_grad(), engine as manager:
        for prompt, length in zip(prompts.tolist(), lens):
            manager.add_request(prompt, max_new_tokens=length)
        generated, finished = 0, 0
        while finished < len(lens):
            output = manager.get_result(timeout=1)
            if output is None and not manager.is_running():
                raise SystemExit("continuous batching has ended before its requests")
            if output is not None and output.is_finished():
                generated, finished = generated + len(output.generated_tokens), finished + 1
    if generated != sum(lens):
        raise SystemExit(f"continuous batching generated {generated} tokens of {sum(lens)}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", choices=DTYPES, default="fp32")
    parser.add_argument("--continuous", action="store_true")
    arguments = parser.parse_args()
    model = shape.llama().to(DTYPES[arguments.dtype]).eval()
    loads = shape.generation_loads()
    generate = continuous if arguments.continuous else static
    serve.ready()
    while name := serve.wait_for_turn():
        load = loads[name]
        prompts = torch.randint(0, model.config.vocab_size, (len(load["new_tokens"]), load["prompt_len"]))
        measurement = serve.Measurement()
        generate(model, prompts, load["new_tokens"])
        measurement.answer(sum(load["new_tokens"]))


main()

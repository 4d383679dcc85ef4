"""Generation by CTranslate2 on the loads of `rollout/loads.json`, sampling at temperature 1: static batches of 16 whose
samples go on to the longest of them. Only tokens that were asked for count.

    python generate_ctranslate2.py [--dtype fp32|int8]
"""

import argparse
import os
import random
import tempfile

import ctranslate2

import serve
import shape

BATCH = 16
COMPUTE_TYPES = {"fp32": "float32", "int8": "int8"}


def generator(dtype):
    with tempfile.TemporaryDirectory() as folder:
        shape.save_model(f"{folder}/model")
        ctranslate2.converters.TransformersConverter(f"{folder}/model").convert(f"{folder}/converted", quantization=dtype)
        return ctranslate2.Generator(f"{folder}/converted", device="cpu", compute_type=dtype, inter_threads=1,
                                     intra_threads=int(os.environ["OMP_NUM_THREADS"]))


def generate(model, prompts, lens):
    for start in range(0, len(lens), BATCH):
        longest = max(lens[start:start + BATCH])
        results = model.generate_batch(prompts[start:start + BATCH], max_length=longest, min_length=longest,
                                       sampling_topk=0, sampling_temperature=1.0, include_prompt_in_result=False, end_token=[])
        if any(len(result.sequences_ids[0]) != longest for result in results):
            raise SystemExit(f"a sample ended before its {longest} tokens")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", choices=COMPUTE_TYPES, default="fp32")
    model = generator(COMPUTE_TYPES[parser.parse_args().dtype])
    loads = shape.generation_loads()
    vocab_size = shape.config()["vocab_size"]
    serve.ready()
    while name := serve.wait_for_turn():
        load = loads[name]
        word = lambda: f"t{random.randrange(2, vocab_size - 1)}"
        prompts = [[word() for _ in range(load["prompt_len"])] for _ in load["new_tokens"]]
        measurement = serve.Measurement()
        generate(model, prompts, load["new_tokens"])
        measurement.answer(sum(load["new_tokens"]))


main()

"""What this machine can do at best, in figures that the reports compare with: products of matrices and reading memory.

    python limits.py [--dtype fp32|bf16]

Answers one line of standard input after the other, as the contestants do. Products of fp32 matrices are what "medium"
allows, the fastest that libtorch has for them.
"""

import argparse
import time

import torch

import serve

ROWS, INPUTS, OUTPUTS = 1024, 576, 3072
READ_FLOATS = 128 << 20
REPEATS = 32
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def best_seconds(work):
    def timed():
        started = time.perf_counter()
        work()
        return time.perf_counter() - started

    return min(timed() for _ in range(REPEATS))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", choices=DTYPES, default="fp32")
    dtype = DTYPES[parser.parse_args().dtype]
    torch.set_float32_matmul_precision("medium")
    x, weight = torch.randn(ROWS, INPUTS, dtype=dtype), torch.randn(OUTPUTS, INPUTS, dtype=dtype)
    memory = torch.ones(READ_FLOATS)
    serve.ready()
    while serve.wait_for_turn():
        with torch.inference_mode():
            product = best_seconds(lambda: torch.nn.functional.linear(x, weight))
            read = best_seconds(memory.sum)
        serve.answer({"tokens": 0, "gflops": 2e-9 * ROWS * INPUTS * OUTPUTS / product, "read_gb_s": 4e-9 * READ_FLOATS / read})


main()

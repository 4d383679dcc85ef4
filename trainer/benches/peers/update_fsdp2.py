"""The packed training step of `update.py` in fp32 on two ranks by PyTorch's FSDP2 over Gloo: each layer and what is outside
of the layers a unit of its own, freed after the forward pass and gathered again for the backward one.

    python update_fsdp2.py [--precision highest|medium]

The load `memory` is one sequence of 8 tokens for each rank.
"""

import argparse

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import serve
import shape
from crew import Crew
from update import model_of, packed

NUM_RANKS = 2
SHORT = [8] * NUM_RANKS
DTYPES = {"highest": "fp32", "medium": "medium"}


def sharded(model):
    mesh = init_device_mesh("cpu", (NUM_RANKS,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def share(rows, rank):
    """Rows of even length together: the longest first, each to the rank that has the fewest tokens."""
    shares = [[] for _ in range(NUM_RANKS)]
    for row in sorted(rows, key=len, reverse=True):
        min(shares, key=lambda share: sum(map(len, share))).append(row)
    return shares[rank]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--precision", choices=DTYPES, default="highest")
    arguments = parser.parse_args()
    crew = Crew(NUM_RANKS)
    model = sharded(model_of(DTYPES[arguments.precision], False))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    loads = {"step": shape.training_lens(), "memory": SHORT}
    micro_batches = {}
    for load, lens in loads.items():
        rows = [torch.randint(0, model.config.vocab_size, (length,)) for length in lens]
        micro_batches[load] = packed(share(rows, crew.rank))
    serve.ready()
    for load in crew.turns():
        lens = loads[load]
        measurement = serve.Measurement()
        # Gradients are averaged over the ranks: the loss of a rank counts as often as there are ranks.
        loss = model(**micro_batches[load], num_items_in_batch=sum(lens) - len(lens)).loss
        (loss * NUM_RANKS).backward()
        grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor().item()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        crew.answer(measurement.result(sum(lens), grad_norm=grad_norm))
    crew.end()


main()

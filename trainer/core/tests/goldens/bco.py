"""Writes bco.json: what TRL's BCO makes of updates one after the other, whose rewards have a running mean.

Requirements: trl==1.13.0, the last that has BCO; torch==2.11.0 transformers==5.17.0 peft joblib. Run it in this folder.

`BCOTrainer.bco_loss` is called unbound, with TRL's own `RunningMoments`; all of it is float64, `Tensor.float` being made
to be `Tensor.double`. TRL's loss is the mean over completions; ours, as `bco_pair` of DPO, that over pairs of their sum.
"""

import json
import types

import torch
from trl.experimental.bco.bco_trainer import BCOTrainer, RunningMoments

torch.manual_seed(18)
torch.set_default_dtype(torch.float64)
torch.Tensor.float = torch.Tensor.double
SIZES = (4, 1, 3)


def completions(num_pairs, scale):
    lengths = torch.randint(2, 8, (2 * num_pairs,)).tolist()
    return [-torch.rand(length) * scale for length in lengths]


def updates(beta, scale):
    accelerator = types.SimpleNamespace(use_distributed=False)
    trainer = types.SimpleNamespace(
        beta=beta, running=RunningMoments(accelerator=accelerator), match_underlying_distribution=False,
    )
    given, expected = [], []
    for size in SIZES:
        actor = [row.requires_grad_() for row in completions(size, scale)]
        reference = [-torch.rand(len(row)) * scale for row in actor]
        sums = lambda rows, first: torch.stack([row.sum() for row in rows[first::2]])
        losses, _, _, delta = BCOTrainer.bco_loss(
            trainer, sums(actor, 0), sums(actor, 1), sums(reference, 0), sums(reference, 1), None, None,
        )
        loss = losses.mean()
        loss.backward()
        rows = lambda rows: [row.detach().tolist() for row in rows]
        given.append({"logprobs": rows(actor), "ref_logprobs": rows(reference)})
        expected.append({"loss": float(loss), "delta": float(delta), "d_logprobs": rows([row.grad for row in actor])})
    return {"fn": "bco", "args": {"beta": beta, "updates": given}, "expect": {"updates": expected}}


cases = [updates(0.1, 1.0), updates(0.5, 1.0), updates(0.3, 4.0)]
with open("bco.json", "w") as file:
    json.dump({"source": "trl 1.13.0", "seed": 18, "dtype": "float64", "cases": cases}, file)
    file.write("\n")
print(len(cases), "cases")

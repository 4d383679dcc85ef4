"""Writes reweighting.json: the weights by which verl's PF-PPO draws samples anew.

Requirements: torch==2.11.0 numpy, and the wheel of verl==0.9.1 unpacked into the folder that the first argument names.

`compute_pf_ppo_reweight_data` is taken out of `core_algos.py` by itself, because importing the module needs all of
verl. `torch.multinomial` is replaced by a function that keeps the weights.
"""

import ast
import json
import pathlib
import sys
import types

import torch

torch.set_default_dtype(torch.float64)
torch.manual_seed(9)
source = pathlib.Path(sys.argv[1], "verl/trainer/ppo/core_algos.py").read_text()
name = "compute_pf_ppo_reweight_data"
function = next(node for node in ast.parse(source).body if getattr(node, "name", None) == name)
namespace = {"torch": torch}
exec(compile(ast.Module([function], []), "core_algos.py", "exec"), namespace)


class Drawn(Exception):
    pass


def keep(weights, *_, **__):
    raise Drawn(weights)


torch.multinomial = keep
cases = []
for method, power in (("pow", 2.0), ("pow", 0.5), ("max_min", 2.0), ("max_random", 2.0)):
    for scores in (torch.randn(6, 3), torch.randint(-1, 2, (8, 3)).double()):
        data = types.SimpleNamespace(batch={"token_level_scores": scores})
        try:
            namespace[name](data, method, power)
        except Drawn as drawn:
            weights = drawn.args[0].tolist()
        args = {"scores": scores.sum(-1).tolist(), "method": method, "power": power}
        cases.append({"fn": "reweighting", "args": args, "expect": {"weights": weights}})

with open("reweighting.json", "w") as file:
    json.dump({"source": "verl 0.9.1", "seed": 9, "dtype": "float64", "cases": cases}, file)
    file.write("\n")
print(len(cases), "cases")

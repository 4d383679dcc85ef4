"""Writes preference.json: losses and gradients that TRL's own methods compute on random log-probs.

Requirements: trl==1.16.0 torch==2.11.0 transformers==5.17.0 peft. Run it in this folder.

The trainers' methods are called unbound, on an object that has what they read of a trainer; the model is a function that
returns given log-probs. All of it is float64: `Tensor.float` is made to be `Tensor.double`, and `alpha_divergence`,
which looks up bounds by dtype, runs in float32 and is marked so.
"""

import collections
import json
import types

import torch
from trl.experimental.cpo import CPOTrainer
from trl.experimental.orpo import ORPOTrainer
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.kto_trainer import KTOTrainer
from trl.trainer.reward_trainer import RewardTrainer

torch.manual_seed(16)
torch.set_default_dtype(torch.float64)
single = torch.Tensor.float
torch.Tensor.float = torch.Tensor.double
NUM_PAIRS, WIDTH = 4, 9
cases = []


class Model(torch.nn.Module):
    """A model whose outputs are given."""

    is_gradient_checkpointing = False

    def __init__(self, **outputs):
        super().__init__()
        self.outputs = types.SimpleNamespace(**outputs)

    def forward(self, **_):
        return self.outputs


def accelerator():
    same = lambda tensor: tensor
    return types.SimpleNamespace(device="cpu", gather=same, gather_for_metrics=same, unwrap_model=same)


def metrics():
    return collections.defaultdict(lambda: collections.defaultdict(list))


def masks(rows):
    """Completions of 2 to 9 tokens behind a prompt of one token."""
    lengths = torch.randint(2, WIDTH + 1, (rows,))
    return (torch.arange(WIDTH)[None] < lengths[:, None]).long()


def logprobs(mask, scale=1.0):
    return -torch.rand(mask.shape) * scale * mask


def outputs(log_probs, squares):
    zeros = torch.zeros_like(log_probs)
    return Model(
        log_probs=log_probs,
        log_sum_sq_probs=squares,
        entropy=zeros,
        mean_logits=zeros,
        is_top1=zeros.bool(),
    )


def ragged(values, mask):
    return [[float(v) for v, m in zip(row, keep) if m] for row, keep in zip(values.detach(), mask)]


def interleaved(values):
    """TRL's [chosen .., rejected ..] as [chosen, rejected, chosen ..]."""
    chosen, rejected = values.chunk(2)
    return torch.stack([chosen, rejected], 1).flatten(0, 1)


def add(function, args, loss, **expect):
    cases.append({"fn": function, "args": args, "expect": {"loss": float(loss), **expect}})


def pair_args(mask, values, **parameters):
    rows = {name: ragged(interleaved(tensor), interleaved(mask)) for name, tensor in values.items()}
    return {**rows, **parameters}


def dpo(
    loss, beta=0.1, smoothing=0.0, divergence="reverse_kl", alpha=0.5, ld=None, wpo=False, tau=0.05, scale=1.0, weights=None
):
    mask = masks(2 * NUM_PAIRS)
    values, reference, squares = logprobs(mask, scale), logprobs(mask, scale), logprobs(mask, 0.5)
    single_precision = divergence == "alpha_divergence"
    if single_precision:
        values, reference, squares = (single(tensor) for tensor in (values, reference, squares))
    values.requires_grad_()
    completion_mask = torch.cat([torch.zeros(len(mask), 1).long(), mask], 1)
    losses = loss if isinstance(loss, list) else [loss]
    model = outputs(values, squares)
    trainer = types.SimpleNamespace(
        model=model, ref_model=outputs(reference, squares), accelerator=accelerator(), aux_loss_enabled=False,
        ld_alpha=ld, precompute_ref_logps=False, f_divergence_type=divergence, f_alpha_divergence_coef=alpha,
        loss_types=losses, loss_weights=weights or [1.0] * len(losses), beta=beta, label_smoothing=smoothing, use_weighting=wpo,
        args=types.SimpleNamespace(discopop_tau=tau, gradient_checkpointing_kwargs=None), _metrics=metrics(),
        _total_train_tokens=0, _tp_size=1,
    )
    inputs = {
        "input_ids": torch.zeros_like(completion_mask), "attention_mask": torch.ones_like(completion_mask),
        "completion_mask": completion_mask,
    }
    got = DPOTrainer._compute_loss(trainer, model, inputs, False)
    got.backward()
    args = pair_args(
        mask, {"logprobs": values, "ref_logprobs": reference, "log_sum_squares": squares},
        losses=losses, beta=beta, label_smoothing=smoothing, divergence=divergence, alpha=alpha, ld_alpha=ld, wpo=wpo,
        discopop_tau=tau, single_precision=single_precision, **({"weights": weights} if weights else {}),
    )
    reward = {name: trainer._metrics["train"][f"rewards/{name}"][0] for name in ("chosen", "rejected", "accuracies")}
    # A loss that does not read a token leaves it without a gradient.
    gradient = ragged(interleaved(values.grad), interleaved(mask))
    add("dpo", args, got, d_logprobs=gradient, rewards=list(reward.values()))


for name in ("sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "apo_zero", "apo_down",
             "discopop", "sigmoid_norm"):
    for beta, smoothing, scale in ((0.1, 0.1, 1.0), (0.5, 0.3, 3.0)):
        dpo(name, beta, smoothing, scale=scale)
    if name != "hinge":  # TRL multiplies the weights in place, which the gradient of relu refuses.
        dpo(name, 0.2, 0.2, wpo=True)
    dpo(name, 0.2, 0.2, ld=0.4)
for name in ("sigmoid", "hinge", "ipo", "exo_pair", "robust", "discopop", "sigmoid_norm"):
    for divergence in ("forward_kl", "js_divergence", "alpha_divergence"):
        dpo(name, 0.3, 0.1, divergence=divergence)
dpo(["sigmoid", "bco_pair", "sft"], 0.1)
dpo(["apo_zero", "sft"], 0.3)


def kto(loss, beta, desirable, undesirable, rising):
    mask = masks(2 * NUM_PAIRS)
    values, reference = logprobs(mask), logprobs(mask)
    values.requires_grad_()
    mismatched = masks(2 * NUM_PAIRS)
    kl = logprobs(mismatched, 0.5 if rising else 1.0), logprobs(mismatched, 1.0 if rising else 0.5)
    labels = torch.tensor([True, False, True, True, False, True, False, False])
    model, ref_model = outputs(values, values), outputs(reference, reference)
    sums = lambda which, _: (kl[0] if which is model else kl[1]).sum(-1)
    trainer = types.SimpleNamespace(
        model=model, ref_model=ref_model, accelerator=accelerator(), aux_loss_enabled=False, _compute_kl_logps=sums,
        precompute_ref_logps=False, calculate_KL=loss == "kto", loss_type=loss, beta=beta, desirable_weight=desirable,
        undesirable_weight=undesirable, args=types.SimpleNamespace(gradient_checkpointing_kwargs=None),
        _metrics=metrics(), _total_train_tokens=0, _tp_size=1,
    )
    completion_mask = torch.cat([torch.zeros(len(mask), 1).long(), mask], 1)
    inputs = {
        "input_ids": torch.zeros_like(completion_mask), "attention_mask": torch.ones_like(completion_mask),
        "completion_mask": completion_mask, "label": labels,
    }
    got = KTOTrainer._compute_loss(trainer, model, inputs, False)
    got.backward()
    args = {
        "logprobs": ragged(values, mask), "ref_logprobs": ragged(reference, mask), "labels": labels.tolist(),
        "kl_logprobs": ragged(kl[0], mismatched), "kl_ref_logprobs": ragged(kl[1], mismatched), "loss": loss,
        "beta": beta, "desirable_weight": desirable, "undesirable_weight": undesirable,
    }
    add("kto", args, got, d_logprobs=ragged(values.grad, mask), z=trainer._metrics["train"]["kl"])


for rising in (True, False):
    kto("kto", 0.1, 1.0, 1.0, rising)
    kto("kto", 0.5, 1.2, 0.8, rising)
kto("apo_zero_unpaired", 0.3, 1.0, 1.33, True)


def reference_free(name, beta, gamma, smoothing, imitation, alpha=0.0):
    mask = masks(2 * NUM_PAIRS)
    values = logprobs(mask).requires_grad_()
    sums = values.sum(-1)
    used = sums if name in ("sigmoid", "hinge") else sums / mask.sum(-1)
    trainer = types.SimpleNamespace(
        alpha=alpha, beta=beta, simpo_gamma=gamma, label_smoothing=smoothing, accelerator=accelerator(),
        loss_type="simpo" if name == "alphapo" else name,
    )
    chosen, rejected = used.chunk(2)
    if name == "orpo":
        loss = -ORPOTrainer.odds_ratio_loss(trainer, chosen, rejected)[0].mean()
    else:
        loss = CPOTrainer.cpo_loss(trainer, chosen, rejected)[0].mean()
    # The cross-entropy of the chosen completions' tokens, as in `CPOTrainer.concatenated_forward`.
    loss = loss - imitation * values[:NUM_PAIRS][mask[:NUM_PAIRS].bool()].mean()
    loss.backward()
    args = pair_args(
        mask, {"logprobs": values}, loss=name, beta=beta, simpo_gamma=gamma, label_smoothing=smoothing, imitation=imitation,
        **({"alpha_po": alpha} if alpha else {}),
    )
    add("reference_free", args, loss, d_logprobs=ragged(interleaved(values.grad), interleaved(mask)))


for name in ("sigmoid", "simpo", "orpo"):
    reference_free(name, 0.1, 0.0, 0.0, 1.0)
    reference_free(name, 2.0, 0.5, 0.0, 0.0)
    if name != "orpo":
        reference_free(name, 0.7, 1.5, 0.2, 0.3)


def reward_model(margins, centring):
    scores = torch.randn(2 * NUM_PAIRS, 1, requires_grad=True)
    model = Model(logits=scores)
    trainer = types.SimpleNamespace(
        model=model, args=types.SimpleNamespace(center_rewards_coefficient=centring), accelerator=accelerator(),
        _metrics=metrics(), _total_train_tokens=0, _tp_size=1,
    )
    inputs = {"attention_mask": torch.ones(1)}
    margin = torch.rand(NUM_PAIRS)
    if margins:
        inputs["margin"] = margin
    got = RewardTrainer.compute_loss(trainer, model, inputs)
    got.backward()
    chosen, rejected = scores.detach().flatten().chunk(2)
    slopes = scores.grad.flatten().chunk(2)
    args = {
        "chosen": chosen.tolist(), "rejected": rejected.tolist(), "margins": margin.tolist() if margins else None,
        "centring": centring,
    }
    add(
        "reward_model", args, got, d_chosen=slopes[0].tolist(), d_rejected=slopes[1].tolist(),
        accuracy=trainer._metrics["train"]["accuracy"][0],
    )


for margins in (False, True):
    for centring in (None, 0.01, 0.3):
        reward_model(margins, centring)

for _ in range(3):
    logits = torch.randn(6, 2, requires_grad=True)
    labels = torch.randint(0, 2, (6,))
    # transformers' loss of token classification; separators alone have labels.
    got = torch.nn.functional.cross_entropy(logits, labels)
    got.backward()
    add("process_reward", {"logits": logits.tolist(), "labels": labels.bool().tolist()}, got, d_logits=logits.grad.tolist())

# Behind all others, whose random numbers stay as they are.
for name in ("aot", "aot_unpaired"):
    for beta, smoothing, scale in ((0.1, 0.1, 1.0), (0.5, 0.0, 3.0)):
        dpo(name, beta, smoothing, scale=scale)
    dpo(name, 0.2, 0.2, ld=0.4)
for name in ("hinge", "ipo"):
    reference_free(name, 0.1, 0.0, 0.0, 1.0)
    reference_free(name, 0.7, 0.0, 0.0, 0.0)
reference_free("alphapo", 2.0, 0.5, 0.0, 0.0, alpha=0.25)
reference_free("alphapo", 0.7, 1.5, 0.2, 0.3, alpha=-0.5)
# MPO (arXiv 2411.10442), and losses of every sort.
dpo(["sigmoid", "bco_pair", "sft"], 0.1, weights=[0.8, 0.2, 1.0])
dpo(["robust", "aot", "ipo", "apo_down", "sft"], 0.3, 0.1, weights=[0.5, 0.25, 2.0, 1.5, 0.1])
dpo(["sigmoid", "exo_pair", "hinge"], 0.3, 0.1, divergence="js_divergence", weights=[1.0, 0.3, 0.7])
dpo(["sigmoid", "nca_pair"], 0.2, ld=0.4, wpo=True, weights=[0.6, 0.4])

with open("preference.json", "w") as file:
    json.dump({"source": "trl 1.16.0", "seed": 16, "dtype": "float64", "cases": cases}, file)
    file.write("\n")
print(len(cases), "cases")

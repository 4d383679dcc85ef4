"""One training step by transformers on the lengths of `training/lens.json`: padded in micro-batches of 4, or packed into
one row whose position ids start anew with each sequence, so that attention is masked into blocks.

    python update.py --mode padded|packed [--precision highest|medium] [--lora]
"""

import argparse
import json
import pathlib

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import serve

BENCHES = pathlib.Path(__file__).parent.parent
MICRO_BATCH = 4
IGNORED = -100


def model_of(lora):
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**json.loads((BENCHES / "rollout/model.json").read_text())))
    model.config.use_cache = False
    if lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"))
    return model.train()


def padded(rows):
    for start in range(0, len(rows), MICRO_BATCH):
        part = rows[start:start + MICRO_BATCH]
        tokens = torch.nn.utils.rnn.pad_sequence(part, batch_first=True)
        labels = torch.nn.utils.rnn.pad_sequence(part, batch_first=True, padding_value=IGNORED)
        lens = torch.tensor([len(row) for row in part])
        yield {"input_ids": tokens, "labels": labels, "attention_mask": (torch.arange(tokens.shape[1]) < lens[:, None]).long()}


def packed(rows):
    tokens = torch.cat(rows)[None]
    labels = torch.cat([torch.cat([torch.tensor([IGNORED]), row[1:]]) for row in rows])[None]
    yield {"input_ids": tokens, "labels": labels, "position_ids": torch.cat([torch.arange(len(row)) for row in rows])[None]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=["padded", "packed"], required=True)
    parser.add_argument("--precision", choices=["highest", "medium"], default="highest")
    parser.add_argument("--lora", action="store_true")
    arguments = parser.parse_args()
    torch.set_float32_matmul_precision(arguments.precision)
    model = model_of(arguments.lora)
    lens = json.loads((BENCHES / "training/lens.json").read_text())
    rows = [torch.randint(0, model.config.vocab_size, (length,)) for length in lens]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=True)
    micro_batches = list((padded if arguments.mode == "padded" else packed)(rows))
    num_learned = sum(lens) - len(lens)
    serve.ready()
    while serve.wait_for_turn():
        measurement = serve.Measurement()
        loss = 0.0
        for micro_batch in micro_batches:
            output = model(**micro_batch, num_items_in_batch=num_learned)
            output.loss.backward()
            loss += output.loss.item()
        grad_norm = torch.nn.utils.clip_grad_norm_(trained, 1.0).item()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        measurement.answer(sum(lens), loss=loss, grad_norm=grad_norm)


if __name__ == "__main__":
    main()

"""One training step by transformers on the lengths of `training/lens.json`, as one micro-batch like ours: packed into one row
whose position ids start anew with each sequence, so that attention is masked into blocks. Padded rows take three times as long.

    python update.py [--dtype fp32|medium|autocast|bf16] [--lora]

`medium` multiplies matrices of fp32 in bfloat16 where libtorch has it, `autocast` is what Trainer's `bf16` does, `bf16` has
weights and moments in it.
"""

import argparse

import torch

import serve
import shape

IGNORED = -100
DTYPES = ("fp32", "medium", "autocast", "bf16")


def model_of(dtype, lora):
    torch.set_float32_matmul_precision("medium" if dtype == "medium" else "highest")
    model = shape.llama()
    if dtype == "bf16":
        model = model.to(torch.bfloat16)
    model.config.use_cache = False
    if lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"))
    return model.train()


def packed(rows):
    tokens = torch.cat(rows)[None]
    labels = torch.cat([torch.cat([torch.tensor([IGNORED]), row[1:]]) for row in rows])[None]
    return {"input_ids": tokens, "labels": labels, "position_ids": torch.cat([torch.arange(len(row)) for row in rows])[None]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", choices=DTYPES, default="fp32")
    parser.add_argument("--lora", action="store_true")
    arguments = parser.parse_args()
    model = model_of(arguments.dtype, arguments.lora)
    lens = shape.training_lens()
    rows = [torch.randint(0, model.config.vocab_size, (length,)) for length in lens]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=True)
    micro_batch = packed(rows)
    num_learned = sum(lens) - len(lens)
    serve.ready()
    while serve.wait_for_turn():
        measurement = serve.Measurement()
        with torch.autocast("cpu", torch.bfloat16, enabled=arguments.dtype == "autocast"):
            loss = model(**micro_batch, num_items_in_batch=num_learned).loss
        loss.backward()
        grad_norm = torch.nn.utils.clip_grad_norm_(trained, 1.0).item()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        measurement.answer(sum(lens), loss=loss.item(), grad_norm=grad_norm)


if __name__ == "__main__":
    main()

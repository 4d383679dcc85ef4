"""The model and the loads that the peers share with the benchmarks in Rust."""

import json
import pathlib

import torch
from transformers import LlamaConfig, LlamaForCausalLM

BENCHES = pathlib.Path(__file__).parent.parent


def config():
    return json.loads((BENCHES / "rollout/model.json").read_text())


def llama():
    """The 135M-parameter Llama with random weights in fp32."""
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**config()))


def training_lens():
    return json.loads((BENCHES / "training/lens.json").read_text())


def generation_loads():
    return {load["name"]: load for load in json.loads((BENCHES / "rollout/loads.json").read_text())}


def save_model(folder):
    """Writes the model with a tokenizer whose words are `t0`, `t1`, ...; the tokenizer and its last token, which ends a text."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    llama().save_pretrained(folder)
    words = {f"t{token}": token for token in range(config()["vocab_size"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    last = len(words) - 1
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="t0", bos_token="t1", eos_token=f"t{last}",
                                      unk_token="t0")
    wrapped.padding_side = "left"
    wrapped.save_pretrained(folder)
    return wrapped, last

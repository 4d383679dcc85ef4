"""One GRPO step by TRL on the load of the `grpo_step` benchmark.

    python grpo_step.py [--tuned] [--lora]

As it comes, TRL recomputes activations and multiplies fp32 matrices by libtorch's default. `--tuned` gives each phase its
best: kept activations, "medium" matrix products outside the rollout (in it they are slower).
"""

import argparse
import json
import pathlib
import random
import tempfile
import time

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

import serve

BENCHES = pathlib.Path(__file__).parent.parent
NUM_PROMPTS, NUM_SAMPLES, PROMPT_LEN, NEW_TOKENS = 2, 8, 64, 64
MAX_STEPS = 1000


class OneStepATurn(TrainerCallback):
    """Holds the trainer until its turn comes, and answers after the optimizer's step."""

    def __init__(self, clock):
        self.clock, self.is_held = clock, False

    def wait(self, control):
        self.clock.clear()
        control.should_training_stop = not serve.wait_for_turn()
        self.measurement = serve.Measurement()

    def on_step_end(self, args, state, control, **kwargs):
        seconds = time.perf_counter() - self.measurement.started
        rollout, reference = self.clock.get("rollout", 0.0), self.clock.get("reference", 0.0)
        rows = NUM_PROMPTS * NUM_SAMPLES
        self.measurement.answer(rows * (PROMPT_LEN + NEW_TOKENS), new_tokens=rows * NEW_TOKENS, rollout_seconds=rollout,
                                reference_seconds=reference, update_seconds=seconds - rollout - reference)
        self.wait(control)


class TimedTrainer(GRPOTrainer):
    def __init__(self, clock, is_tuned, **kwargs):
        self.clock, self.is_tuned = clock, is_tuned
        super().__init__(**kwargs)

    def _generate(self, prompts):
        if self.is_tuned:
            torch.set_float32_matmul_precision("highest")
        result = self.timed("rollout", super()._generate, prompts)
        if self.is_tuned:
            torch.set_float32_matmul_precision("medium")
        return result

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        scores = super()._get_per_token_logps_and_entropies
        if torch.is_grad_enabled():
            return scores(*args, **kwargs)
        return self.timed("reference", scores, *args, **kwargs)

    def timed(self, phase, work, *args, **kwargs):
        started = time.perf_counter()
        result = work(*args, **kwargs)
        self.clock[phase] = self.clock.get(phase, 0.0) + time.perf_counter() - started
        return result


def save_model(folder):
    config = json.loads((BENCHES / "rollout/model.json").read_text())
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**config)).save_pretrained(folder)
    words = {f"t{token}": token for token in range(config["vocab_size"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    last = config["vocab_size"] - 1
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="t0", eos_token=f"t{last}", unk_token="t0")
    wrapped.padding_side = "left"
    return wrapped, last


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tuned", action="store_true")
    parser.add_argument("--lora", action="store_true")
    arguments = parser.parse_args()
    torch.set_float32_matmul_precision("medium" if arguments.tuned else "highest")
    folder = tempfile.TemporaryDirectory()
    tokenizer, last = save_model(folder.name)
    prompt = lambda: " ".join(f"t{random.randrange(1, last)}" for _ in range(PROMPT_LEN))
    lora = None
    if arguments.lora:
        from peft import LoraConfig

        lora = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    tuned = {"gradient_checkpointing": False} if arguments.tuned else {}
    config = GRPOConfig(
        output_dir=folder.name + "/out", use_cpu=True, bf16=False, report_to="none", save_strategy="no", beta=0.04,
        per_device_train_batch_size=NUM_PROMPTS * NUM_SAMPLES, num_generations=NUM_SAMPLES, max_steps=MAX_STEPS,
        max_completion_length=NEW_TOKENS, generation_kwargs={"min_new_tokens": NEW_TOKENS}, logging_steps=MAX_STEPS,
        disable_tqdm=True, **tuned)
    clock = {}
    turns = OneStepATurn(clock)
    trainer = TimedTrainer(
        clock, arguments.tuned, model=folder.name, args=config, processing_class=tokenizer, peft_config=lora,
        reward_funcs=lambda completions, **_: [random.random() for _ in completions],
        train_dataset=Dataset.from_list([{"prompt": prompt()} for _ in range(NUM_PROMPTS * MAX_STEPS)]),
        callbacks=[turns])
    serve.ready()
    turns.wait(trainer.control)
    if not trainer.control.should_training_stop:
        trainer.train()


main()

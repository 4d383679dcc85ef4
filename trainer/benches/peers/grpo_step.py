"""One GRPO step by TRL on the load of the `grpo_step` benchmark, in micro-batches of a group like ours.

    python grpo_step.py [--dtype autocast|fp32|medium|bf16] [--keep-activations] [--lora]

`autocast` is TRL's default, also on a CPU: weights in fp32, products in bfloat16. `medium` multiplies matrices of fp32 in
bfloat16 where libtorch has it, outside the rollout (in it they are slower); `bf16` has weights and moments in it. As it comes,
TRL recomputes activations.
"""

import argparse
import random
import tempfile
import time

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

import serve
import shape

NUM_PROMPTS, NUM_SAMPLES, PROMPT_LEN, NEW_TOKENS = 2, 8, 64, 64
MAX_STEPS = 1000
DTYPES = ("autocast", "fp32", "medium", "bf16")


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
    def __init__(self, clock, is_medium, **kwargs):
        self.clock, self.is_medium = clock, is_medium
        super().__init__(**kwargs)

    def _generate(self, prompts):
        torch.set_float32_matmul_precision("highest")
        result = self.timed("rollout", super()._generate, prompts)
        torch.set_float32_matmul_precision("medium" if self.is_medium else "highest")
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


def trainer_of(arguments, folder, clock):
    tokenizer, last = shape.save_model(folder)
    prompt = lambda: " ".join(f"t{random.randrange(2, last)}" for _ in range(PROMPT_LEN))
    lora = None
    if arguments.lora:
        from peft import LoraConfig

        lora = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    config = GRPOConfig(
        output_dir=folder + "/out", use_cpu=True, bf16=arguments.dtype == "autocast", report_to="none", save_strategy="no",
        beta=0.04, per_device_train_batch_size=NUM_SAMPLES, gradient_accumulation_steps=NUM_PROMPTS,
        num_generations=NUM_SAMPLES, max_steps=MAX_STEPS, max_completion_length=NEW_TOKENS, logging_steps=MAX_STEPS,
        generation_kwargs={"min_new_tokens": NEW_TOKENS}, disable_tqdm=True,
        gradient_checkpointing=not arguments.keep_activations,
        model_init_kwargs={"dtype": "bfloat16" if arguments.dtype == "bf16" else "float32"})
    return TimedTrainer(
        clock, arguments.dtype == "medium", model=folder, args=config, processing_class=tokenizer, peft_config=lora,
        reward_funcs=lambda completions, **_: [random.random() for _ in completions],
        train_dataset=Dataset.from_list([{"prompt": prompt()} for _ in range(NUM_PROMPTS * MAX_STEPS)]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", choices=DTYPES, default="autocast")
    parser.add_argument("--keep-activations", action="store_true")
    parser.add_argument("--lora", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        clock = {}
        trainer, turns = trainer_of(arguments, folder, clock), OneStepATurn(clock)
        trainer.add_callback(turns)
        serve.ready()
        turns.wait(trainer.control)
        if not trainer.control.should_training_stop:
            trainer.train()


main()

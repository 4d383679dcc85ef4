"""A GRPO step by transformers on a GPU, on the load of `rlt-trainer gpu-check`'s GRPO steps.

    python gpu_grpo_step.py <<<'{"config": ..., "device": "cuda", ...}'

One JSON object in. After each measured step one line out, so that a process that is killed loses only the step that it is
in: seconds of the phases of the fastest step so far, or `missing`: what this Python lacks. A step is what TRL's GRPOTrainer
does without its bookkeeping: `generate` on a bf16 copy of the policy, log-probs of a bf16 reference, one update with fp32
masters under bf16 autocast, fused AdamW, activations kept. Weights and tokens are random.
"""

import copy
import ctypes
import json
import signal
import sys
import time


def end_with_parent():
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    except (AttributeError, OSError):
        pass  # Not Linux: then the parent waits for it.


def answer(values):
    print(json.dumps(values), flush=True)


class Step:
    def __init__(self, torch, transformers, task):
        self.torch, self.task, self.device = torch, task, task["device"]
        document = dict(task["config"])
        config = transformers.AutoConfig.for_model(document.pop("model_type"), **document)
        torch.manual_seed(0)
        with torch.device(self.device):
            self.policy = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").float()
        self.reference = copy.deepcopy(self.policy).bfloat16().eval().requires_grad_(False)
        self.sampler = copy.deepcopy(self.reference)
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), lr=1e-6, fused=self.device == "cuda")

    def wait(self):
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def timed(self, phase, *arguments):
        started = time.perf_counter()
        result = phase(*arguments)
        self.wait()
        return time.perf_counter() - started, result

    def rollout(self):
        torch, task = self.torch, self.task
        with torch.no_grad():
            for copied, trained in zip(self.sampler.parameters(), self.policy.parameters()):
                copied.copy_(trained)
            prompts = torch.randint(task["config"]["vocab_size"], (task["num_prompts"], task["prompt_len"]), device=self.device)
            rows = prompts.repeat_interleave(task["samples_per_prompt"], 0)
            return self.sampler.generate(
                input_ids=rows, attention_mask=torch.ones_like(rows), do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
                max_new_tokens=task["new_tokens"], min_new_tokens=task["new_tokens"], pad_token_id=0)

    def logprobs(self, model, rows):
        new = self.task["new_tokens"]
        logits = model(input_ids=rows, use_cache=False, logits_to_keep=new + 1).logits[:, :-1].float()
        return self.torch.log_softmax(logits, -1).gather(-1, rows[:, -new:, None]).squeeze(-1)

    def micro_batches(self, rows):
        return rows.split(max(1, self.task["max_tokens"] // rows.shape[1]))

    def score(self, rows):
        with self.torch.no_grad():
            return self.torch.cat([self.logprobs(self.reference, part) for part in self.micro_batches(rows)])

    def update(self, rows, reference):
        torch = self.torch
        rewards = torch.rand(self.task["num_prompts"], self.task["samples_per_prompt"], device=self.device)
        advantages = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-6)).view(-1, 1)
        parts = zip(self.micro_batches(rows), self.micro_batches(advantages.expand(-1, rows.shape[1])), strict=True)
        start = 0
        for part, advantage in parts:
            with torch.autocast(self.device, torch.bfloat16):
                logprobs = self.logprobs(self.policy, part)
            ratio = torch.exp(logprobs - logprobs.detach())
            advantage = advantage[:, :1]
            gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
            distance = reference[start:start + len(part)] - logprobs
            kl = torch.exp(distance) - distance - 1
            (-(gain - 0.04 * kl).sum() / reference.numel()).backward()
            start += len(part)
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def run(self):
        rollout, rows = self.timed(self.rollout)
        assert rows.shape[1] == self.task["prompt_len"] + self.task["new_tokens"], rows.shape
        reference, logprobs = self.timed(self.score, rows)
        update, _ = self.timed(self.update, rows, logprobs)
        return {"rollout_seconds": rollout, "reference_seconds": reference, "update_seconds": update}


def main():
    end_with_parent()
    task = json.load(sys.stdin)
    try:
        import torch
        import transformers
    except ImportError as error:
        return answer({"missing": f"{error}"})
    if task["device"] == "cuda" and not torch.cuda.is_available():
        return answer({"missing": f"torch {torch.__version__} of this Python sees no GPU"})
    transformers.logging.set_verbosity_error()
    step = Step(torch, transformers, task)
    step.run()
    rounds = []
    versions = f"transformers {transformers.__version__}, torch {torch.__version__}"
    for _ in range(task["rounds"]):
        rounds.append(step.run())
        answer({"versions": versions, **min(rounds, key=lambda seconds: sum(seconds.values()))})


if __name__ == "__main__":
    main()

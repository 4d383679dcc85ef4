"""A reward server around a function of TRL: `python3 THIS_FILE 8000`, as spec.rewards.functions[].server.url says."""

import importlib
import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

sys.path.insert(0, os.getcwd())
reward = getattr(importlib.import_module(@MODULE@), @FUNCTION@)


def judged(sample, is_conversation):
    """The reward of one completion, as a text or, as TRL passes it for conversations, as a list of messages."""
    prompt, completion = sample["prompt"], sample["completion"]
    if is_conversation:
        prompt = [{"role": "user", "content": prompt}]
        completion = [{"role": "assistant", "content": completion}]
    columns = {"ground_truth": [sample["ground_truth"]], "solution": [sample["ground_truth"]]}
    columns.update({name: [value] for name, value in (sample["extra_info"] or {}).items()})
    return reward(prompts=[prompt], completions=[completion], completion_ids=[[]], **columns)[0]


def verdict(sample):
    """One completion at a time, so that one that fails takes no other with it."""
    try:
        try:
            value = judged(sample, False)
        except (AttributeError, KeyError, TypeError):
            value = judged(sample, True)
        return {"id": sample["id"], "value": 0.0 if value is None else float(value)}
    except Exception as error:
        return {"id": sample["id"], "status": "infra", "message": repr(error)}



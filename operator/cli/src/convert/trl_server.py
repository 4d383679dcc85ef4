"""A reward server around a function of TRL: `python3 THIS_FILE 8000`, as spec.rewards.functions[].server.url says."""

import importlib
import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

sys.path.insert(0, os.getcwd())
reward = getattr(importlib.import_module(@MODULE@), @FUNCTION@)


def verdict(sample):
    """One completion at a time, so that one that fails takes no other with it."""
    try:
        columns = {"ground_truth": [sample["ground_truth"]], "solution": [sample["ground_truth"]]}
        columns.update({name: [value] for name, value in (sample["extra_info"] or {}).items()})
        value = reward(prompts=[sample["prompt"]], completions=[sample["completion"]], **columns)[0]
        return {"id": sample["id"], "value": 0.0 if value is None else float(value)}
    except Exception as error:
        return {"id": sample["id"], "status": "infra", "message": repr(error)}



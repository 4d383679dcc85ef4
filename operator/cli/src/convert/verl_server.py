"""A reward server around a function of verl: `python3 THIS_FILE 8000`, as spec.rewards.functions[].server.url says."""

import importlib.util
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

spec = importlib.util.spec_from_file_location("reward", @MODULE@)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
compute_score = getattr(module, @FUNCTION@)


def verdict(sample):
    try:
        score = compute_score(
            data_source=sample["data_source"],
            solution_str=sample["completion"],
            ground_truth=sample["ground_truth"],
            extra_info=sample["extra_info"],
        )
        value = score["score"] if isinstance(score, dict) else score
        return {"id": sample["id"], "value": float(value)}
    except Exception as error:
        return {"id": sample["id"], "status": "infra", "message": repr(error)}



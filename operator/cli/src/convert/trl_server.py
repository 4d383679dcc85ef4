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


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        samples = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["samples"]
        body = json.dumps({"verdicts": [verdict(sample) for sample in samples]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
print("listening on", server.server_address[1], flush=True)
server.serve_forever()

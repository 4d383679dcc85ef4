"""A reward server in Python's standard library: `python3 server.py 8000`. Protocol: docs/rewards.md."""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def judge(sample):
    """1 for the ground truth, else 0: write your own reward here."""
    return float(sample["completion"].strip() == str(sample["ground_truth"]).strip())


def verdict(sample):
    try:
        return {"id": sample["id"], "value": judge(sample)}
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

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

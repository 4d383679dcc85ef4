#!/usr/bin/env bash
# Measures the trainer beside its peers in one run. The peers' Python environment is made once, under target/.
#   trainer/benches/run.sh [fp32|bf16]     BENCH_PYTHON=/path/to/python uses an environment of your own
set -euo pipefail
cd "$(dirname "$0")/../.."
dtype=${1:-fp32}

python=${BENCH_PYTHON:-target/bench-venv/bin/python}
if [[ ! -x $python ]]; then
  python3 -m venv target/bench-venv
  target/bench-venv/bin/pip install --quiet --requirement trainer/benches/requirements.txt
fi

binary_of() {
  cargo bench --package rlt-trainer --bench "$1" --no-run --message-format=json |
    "$python" -c 'import json, sys
paths = [json.loads(line).get("executable") for line in sys.stdin if line.startswith("{")]
print([path for path in paths if path][-1])'
}

"$python" trainer/benches/rollout/compare.py --bench "$(binary_of rollout)" --dtype "$dtype"

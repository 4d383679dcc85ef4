#!/usr/bin/env bash
# Measures the trainer beside its peers in one run, in fp32 and in bf16, and writes reports/<model>_<hardware>.md: of a kind
# of hardware the newest report alone is kept.
# BENCH_PYTHON=/path/to/python or RLT_BENCH_VENV=/path/to/venv uses an environment of your own; otherwise one is made
# once, under target/. BENCH_ROUNDS (3) and BENCH_CONTESTS (names of tables, all) make a run shorter.
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=${BENCH_ROUNDS:-3}

venv=${RLT_BENCH_VENV:-target/bench-venv}
python=${BENCH_PYTHON:-$venv/bin/python}
if [[ ! -x $python ]]; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --requirement trainer/benches/requirements.txt
fi

binary_of() {
  cargo bench --profile "${BENCH_PROFILE:-bench}" --package "$1" --bench "$2" --no-run --message-format=json |
    "$python" -c 'import json, sys
built = [json.loads(line) for line in sys.stdin if line.startswith("{")]
print([one["executable"] for one in built if "bench" in one.get("target", {}).get("kind", [])][-1])'
}

versions() {
  "$python" -c 'import platform
from importlib.metadata import version
peers = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "trl", "peft", "ctranslate2"))
print(f"{peers}, Python {platform.python_version()}")'
}

rollout=$(binary_of rlt-trainer rollout)
update=$(binary_of rlt-trainer update)
sharded=$(binary_of rlt-trainer sharded)
grpo_step=$(binary_of rlt-trainer grpo_step)
checkpoint=$(binary_of rlt-storage checkpoint)
kernels=$(binary_of rlt-torch kernels)

hardware=$(lscpu | sed -n 's/^Model name: *//p' | head -n 1)
for instructions in amx_bf16 avx512_bf16 avx512f avx2; do
  grep -qw "$instructions" /proc/cpuinfo && break
done
# Hosts hide which EPYC or Xeon they have; what it multiplies by tells them apart.
slug=$(printf '%s %s %s cores' "$hardware" "$instructions" "$(nproc --all)" | tr -cs '[:alnum:]' '-' | tr '[:upper:]' '[:lower:]')
raw=target/bench/$(date -u +%FT%H%M%S).jsonl
report=trainer/benches/reports/llama-135m_$slug.md
mkdir -p "$(dirname "$raw")" "$(dirname "$report")"

figures_of() { # TITLE COMMAND: what a benchmark prints that has its peer within
  printf '\n### %s\n\n```text\n' "$1"
  "${@:2}"
  printf '```\n'
}

{
  echo "# Llama 135M beside its peers, $(date -u +%F)"
  echo
  echo "- Hardware: $hardware ($instructions), $(nproc --all) cores," \
    "$(awk '/MemTotal/ {printf "%.0f", $2 / 1048576}' /proc/meminfo) GiB"
  echo "- Ours: commit $(git rev-parse --short HEAD), profile ${BENCH_PROFILE:-bench}, $(rustc --version | cut -d' ' -f1-2)," \
    "libtorch $(sed -n 's/^VERSION=//p' trainer/torch/fetch-libtorch.sh), GOMP_SPINCOUNT=1000 as \`rlctl run\` and jobs set it"
  echo "- Peers: $(versions), with OpenMP's own settings"
  echo "- Contestants take turns: a warm-up, then $rounds rounds, medians. Load average before: $(cut -d' ' -f1-3 /proc/loadavg)."
  echo "- In a quiet round other processes and the machine's host took at most 0.2 cores. Figures without a quiet round come"
  echo "  from a busy machine: their ratios, best those of processor time, say more than their seconds."
  # shellcheck disable=SC2086 # a list of names
  "$python" trainer/benches/peers/compare.py --grpo-step "$grpo_step" --update "$update" --sharded "$sharded" \
    --rollout "$rollout" --rounds "$rounds" --raw "$raw" ${BENCH_CONTESTS:+--only $BENCH_CONTESTS}
  if [[ -z ${BENCH_CONTESTS:-} ]]; then
    figures_of "loss head beside dense autograd" "$kernels" head
    figures_of "products of quantized weights beside bfloat16's" "$kernels" quantized
    figures_of "checkpoint beside plain writing" "$checkpoint"
  fi
} | tee "$raw.md"
mv "$raw.md" "$report"
echo "bench: $report"

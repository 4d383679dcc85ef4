#!/usr/bin/env bash
# Measures jobs beside batch Jobs and JobSets in one run and writes reports/jobs_<hardware>_<date>.md.
#   operator/benches/run.sh
# Shorter by BENCH_CONTESTANTS ("operator job trainer-job jobset"), BENCH_PODS ("8 64 4x8": pods of single jobs, or pods x ranks),
# BENCH_ROUNDS (10), BENCH_FAILURES (1), BENCH_BURSTS ("200 1000": jobs of eight pods), BENCH_NAMESPACES ("1000": jobs with a namespace
# each), BENCH_RAW_PODS (1600), BENCH_IDLE_SECONDS (60).
set -euo pipefail
cd "$(dirname "$0")/../.."

bench=$(cargo bench --profile "${BENCH_PROFILE:-bench}" --package rlt-operator --bench jobs \
  --no-run --message-format=json |
  python3 -c 'import json, sys
built = [json.loads(line) for line in sys.stdin if line.startswith("{")]
print([one["executable"] for one in built if "bench" in one.get("target", {}).get("kind", [])][-1])')

hardware=$(lscpu | sed -n 's/^Model name: *//p' | head -n 1)
slug=$(printf '%s %s cores' "$hardware" "$(nproc --all)" | tr -cs '[:alnum:]' '-' | tr '[:upper:]' '[:lower:]')
report=operator/benches/reports/jobs_${slug}_$(date -u +%F).md
mkdir -p "$(dirname "$report")"

loads=$(cut -d' ' -f1-3 /proc/loadavg)
{
  echo "# Jobs beside batch Jobs and JobSets, $(date -u +%F)"
  echo
  echo "- Hardware: $hardware, $(nproc --all) cores, $(awk '/MemTotal/ {printf "%.0f", $2 / 1048576}' /proc/meminfo) GiB;" \
    "everything shares them: control plane, nodes, controllers and the benchmark."
  echo "- Ours: commit $(git rev-parse --short HEAD), profile ${BENCH_PROFILE:-bench}, $(rustc --version | cut -d' ' -f1-2), the" \
    "chart's settings and roles."
  echo "- Kubernetes $(sed -n 's/^\tk8s.io\/kubernetes \(v[0-9.]*\).*/\1/p' tests/cluster/programs/kubernetes/go.mod):" \
    "etcd without fsync, API server with audit log, controller manager and scheduler with client limits of 1000 calls a second;" \
    "kwok $(sed -n 's/^\tsigs.k8s.io\/kwok \(v[0-9.]*\).*/\1/p' tests/cluster/programs/kwok/go.mod), 32 nodes," \
    "pods start and end at once."
  echo "- JobSet $(sed -n 's/^\tsigs.k8s.io\/jobset \(v[0-9.]*\).*/\1/p' tests/cluster/programs/jobset/go.mod) with its own" \
    "defaults and webhooks. Each gang has a fresh cluster; raw is a plain client that posts pods, 16 at a time," \
    "right before: small ones of a single container, and those that the gang has."
  echo "- Load average before: $loads."
  "$bench"
} | tee "$report.unfinished"
echo "- Load average after: $(cut -d' ' -f1-3 /proc/loadavg)." >>"$report.unfinished"
mv "$report.unfinished" "$report"
echo "bench: $report"

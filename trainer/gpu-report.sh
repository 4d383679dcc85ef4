#!/usr/bin/env bash
# Checks and measures the GPU of a bare machine within one time limit, and writes a report of one page. The machine needs
# bash, python3 and libtorch with CUDA (Python's torch 2.11); the bundle of `make gpu-bundle` brings everything else.
#
#   gpu-report.sh [--bundle ARCHIVE] [--out FOLDER] [--seconds SECONDS] [--limit STAGE=SECONDS ...] [--libtorch FOLDER]
#
# Stages run in the order of the list below. A stage for which too little time is left is not started, and one that takes
# longer than its limit is killed; both are reported. `--limit all=SECONDS` is for every stage that has no limit of its own.
# Stages that failed, except those of a peer, run again with CUDA_LAUNCH_BLOCKING=1, without CUDA graphs if they decode, and,
# unless they hung, under compute-sanitizer; `--limit reruns=SECONDS` is for all second runs before the measurements, and for
# those behind them; what does not fit runs at the end. FOLDER (default: $OUT) receives at most 8 files of at most 16 MiB:
#
#   gpu-report.md     the page; after a run that was killed, gpu-report-page.py makes it from findings.jsonl
#   findings.jsonl    every finding, appended when it is made, and how every stage ended
#   output.log        all other output of the stages, and their standard error
#   environment.txt   GPU, driver, libraries and versions
#   trace-decode.json, trace-update.json   traces of libtorch's profiler, for Perfetto
#   ncu.txt           Nsight Compute's figures of decoding
#
# Exit codes: 0 no stage failed, 1 a stage failed, 2 a wrong command line or no bundle.
set -uo pipefail

# Checks that are joined by + run side by side and share the cores. `reruns` runs again what has failed so far, for as many
# seconds together as its column says, or as are left; `memcheck:CHECK`, `racecheck:CHECK` and `ncu:CHECK` run a check under
# NVIDIA's tools. `memory` compares the GPU's free memory and the checks of speed compare times: they run alone. The last
# columns: seconds after which the stage is killed, and seconds that must be left for it to start. The first check reads the
# libraries of CUDA from the disk.
STAGES='
    environment                          20   2
    device                               60   3
    operators+paged+graphs+graph-models  60   8
    memory                               20   4
    packed                               30   6
    kernels                              60  12
    training                             50  12
    reruns                               90   0
    gemm                                 15   5
    copies                               15   5
    decode-speed                         30  10
    update                               30  10
    grpo-step-small                      60  20
    grpo-step-large                      90  30
    published                            90  30
    decode-tail                          60  20
    draws                                20   5
    checkpoints                          40  15
    trace                                40  12
    reruns                               60   0
    memcheck:paged                       60  20
    racecheck:paged                      60  20
    peer-small                          110  60
    peer-large                          130  75
    reruns                                0   0
    ncu:decode-speed                     60  20
'
# Checks whose times are the result. Their work is large, so compute-sanitizer takes them after all other checks.
SPEED=' gemm copies decode-speed update grpo-step-small grpo-step-large published decode-tail peer-small peer-large trace '
# Checks that decode by CUDA graphs.
GRAPHS=' graphs graph-models training checkpoints decode-speed grpo-step-small grpo-step-large published decode-tail trace '
# Seconds at the end that are kept free for killing what runs and for writing the page.
RESERVE=4
# Seconds that a killed stage may take to end before it is left behind: a process in the driver cannot be killed.
PATIENCE=20
# Most seconds of the second run of a stage that was killed.
HUNG=20
# Most errors that compute-sanitizer prints: with their stacks they fit MAX_OUTPUT.
SANITIZER_ERRORS=20
# Bytes of a file, and of the output of one stage.
MAX_FILE=$((16 << 20))
MAX_OUTPUT=$((256 << 10))

say() { echo "gpu-report: $*" >&2; }
usage() {
    say "$@"
    exit 2
}

# Prints what is known of the machine; every command may be missing.
print_environment() {
    local trainer=$1 libraries=$2
    show() {
        echo "== $*"
        "$@" 2>&1 || echo "ended by $?"
    }
    show date --utc
    show nvidia-smi
    show nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,clocks.max.memory,power.limit --format=csv
    LD_LIBRARY_PATH=$libraries show ldd "$trainer"
    show ldd --version
    show uname --all
    show nproc
    show free --human
    show df --human-readable /tmp /dev/shm
    # From the packages' files: importing them takes seconds.
    show "$python" -c 'from importlib.metadata import version; print(version("torch"), version("transformers"))'
    show nvcc --version
    show ncu --version
    show compute-sanitizer --version
}

# Prints a text as JSON: quoted TEXT
quoted() {
    local text=${1//\\/\\\\}
    printf '"%s"' "${text//\"/\\\"}"
}

# A line about a stage: event STAGE RUN STATUS SECONDS TEXT [LAST-LINE]
event() {
    local line
    line="{\"stage\":\"$1\",\"run\":\"$2\",\"ended\":\"$3\",\"seconds\":$4,\"text\":$(quoted "$5")"
    [ -z "${6:-}" ] || line+=",\"lastLine\":$(quoted "$6")"
    line+="}"
    printf '%s\n' "$line" >>"$findings"
    printf '%s\n' "$line"
}

# Writes the findings among a stage's lines, with the stage's name and run, where they belong, and the other lines to the
# log. What follows after MAX_OUTPUT bytes is read and dropped, so that the stage does not wait.
sort_lines() {
    local line room=$MAX_OUTPUT
    while IFS= read -r line || [ -n "$line" ]; do
        case $line in
        '{'*'}') line="{\"stage\":\"$1\",\"run\":\"$2\",${line#\{}" ;;
        *) line="[$1 $2] $line" ;;
        esac
        room=$((room - ${#line} - 1))
        if [ "$room" -lt 0 ]; then
            cat >/dev/null
        elif [ "${line:0:1}" = '{' ]; then
            printf '%s\n' "$line" >>"$findings"
            printf '%s\n' "$line"
        else
            printf '%s\n' "$line" >>"$log"
        fi
    done
}

# Standard error is for the log, whatever its lines look like.
log_lines() {
    sed --unbuffered "s/^/[$1 $2] /" | {
        head -c "$MAX_OUTPUT"
        # A line that was cut ends here.
        [ "$(head -c 1 | wc -c)" = 0 ] || echo
        cat >/dev/null
    } >>"$log"
}

declare -A pids=() readers=() started=() ends=() limits=() hung=()
failed=()
# Second runs that are still to be done, a stage and the kind of run each.
waiting=()

# Starts a stage in a session of its own: start STAGE RUN SECONDS COMMAND...
start() {
    local stage=$1 run=$2 limit=$3 key="$1 $2"
    shift 3
    local pipe="$work/${stage//[^a-z-]/_}.$run"
    mkfifo "$pipe.out" "$pipe.err"
    sort_lines "$stage" "$run" <"$pipe.out" &
    readers[$key]=$!
    log_lines "$stage" "$run" <"$pipe.err" &
    readers[$key]+=" $!"
    setsid -- "$@" </dev/null >"$pipe.out" 2>"$pipe.err" &
    pids[$key]=$!
    started[$key]=$SECONDS
    limits[$key]=$limit
    ends[$key]=$((SECONDS + limit))
}

# The processes of a stage: those of its session. One that is dead but not yet waited for is left out.
processes_of() {
    local stat line state session
    for stat in /proc/[0-9]*/stat; do
        { read -r line <"$stat"; } 2>/dev/null || continue
        # Behind the command in brackets: state, parent, group, session.
        read -r state _ _ session _ <<<"${line##*) }"
        if [ "$session" = "$1" ] && [ "$state" != Z ]; then basename "${stat%/stat}"; fi
    done
}

# Kills what is left of a stage; fails if it does not end.
end_session() {
    local patience=$((SECONDS + PATIENCE)) left
    while left=$(processes_of "$1") && [ -n "$left" ]; do
        # shellcheck disable=SC2086 # a list of numbers
        kill -KILL $left 2>/dev/null
        [ "$SECONDS" -le "$patience" ] || return 1
        sleep 0.05
    done
}

# Prints the first error that compute-sanitizer has printed, behind its own name: sanitizer_error STAGE RUN
sanitizer_error() {
    local line
    line=$(grep --text --fixed-strings "[$1 $2] ========= " "$log" | grep --text --invert-match COMPUTE-SANITIZER | head -n 1)
    echo "${line#*] ========= }"
}

# Prints the last line that a stage has left in the log, as far as it is text: last_line STAGE RUN
last_line() {
    local line
    line=$(grep --text --fixed-strings "[$1 $2] " "$log" | tail -n 1 | tr --delete '\000-\037\177' | head -c 300)
    echo "${line#"[$1 $2] "}"
}

# Reports how a stage has ended: ended STAGE RUN STATUS TEXT
ended() {
    local stage=$1 run=$2 key="$1 $2" text error="" last="" reader patience=$((SECONDS + PATIENCE))
    end_session "${pids[$key]}" || set -- "$1" "$2" failed "$4; its process cannot be killed"
    for reader in ${readers[$key]}; do
        # A process that cannot be killed keeps the pipe open.
        while kill -0 "$reader" 2>/dev/null && [ "$SECONDS" -le "$patience" ]; do sleep 0.02; done
        kill "$reader" 2>/dev/null
    done
    # The log has all lines of the stage only now. A check that failed itself says why in a finding.
    text=$4
    if [ "$3" = failed ]; then
        [ "$4" = "exit code 1" ] || error=$(sanitizer_error "$stage" "$run")
        if [ -n "$error" ]; then text+="; compute-sanitizer: $error"; else last=$(last_line "$stage" "$run"); fi
    fi
    event "$stage" "$run" "$3" "$((SECONDS - ${started[$key]}))" "$text" "$last"
    if [ "$3" = failed ] && [ "$run" = first ]; then failed+=("$stage"); fi
    unset "pids[$key]" "readers[$key]" "started[$key]" "ends[$key]" "limits[$key]"
}

describe() {
    if [ "$1" -gt 128 ]; then
        echo "crashed: SIG$(kill -l $(($1 - 128)) 2>/dev/null || echo "$1")"
    else
        echo "exit code $1"
    fi
}

# Seconds after which a check of the bundle ends itself: two before it would be killed, to say why. own_limit LIMIT
own_limit() { echo $(($1 > 3 ? $1 - 2 : $1)); }

# Waits until every started stage has ended or was killed.
finish() {
    local key stage run code
    while [ "${#pids[@]}" -gt 0 ]; do
        for key in "${!pids[@]}"; do
            read -r stage run <<<"$key"
            if ! kill -0 "${pids[$key]}" 2>/dev/null; then
                wait "${pids[$key]}"
                code=$?
                if [ "$code" = 0 ]; then ended "$stage" "$run" passed ""; else
                    [ $((SECONDS - ${started[$key]})) -lt "$(own_limit "${limits[$key]}")" ] || hung[$stage]=1
                    ended "$stage" "$run" failed "$(describe "$code")"
                fi
            elif [ "$SECONDS" -ge "${ends[$key]}" ]; then
                hung[$stage]=1
                ended "$stage" "$run" failed "took longer than ${limits[$key]} s and was killed"
            fi
        done
        [ "${#pids[@]}" -eq 0 ] || sleep 0.05
    done
}

write_page() {
    "$python" "$here/gpu-report-page.py" "$findings" "$page.new" "$identity" 2>>"$log" && mv "$page.new" "$page"
}

# Starts a stage if enough time is left: try STAGE RUN LIMIT NEED COMMAND...
try() {
    local stage=$1 run=$2 limit=$3 need=$4 left=$((deadline - SECONDS))
    shift 4
    left=$((left > 0 ? left : 0))
    # `all` is every stage that has no limit of its own.
    limit=${given[$stage]:-${given[all]:-$limit}}
    if [ "$left" -lt "$need" ]; then
        event "$stage" "$run" "not started" 0 "$left s are left, it needs $need"
        return
    fi
    start "$stage" "$run" $((limit < left ? limit : left)) "$@"
}

# Runs a check under one of NVIDIA's tools, if the machine has it: tool STAGE RUN LIMIT NEED CHECK COMMAND...
tool() {
    local stage=$1 run=$2 limit=$3 need=$4 check=$5
    shift 5
    if command -v "$1" >/dev/null; then
        try "$stage" "$run" "$limit" "$need" "$@" "$gpu_check" --libtorch "$libraries" --here --no-peer "$check"
    else
        event "$stage" "$run" "not started" 0 "there is no $1 on this machine"
    fi
}

sanitizer() {
    tool "$1" "$2" "$3" "$4" "$5" compute-sanitizer --tool "$6" --error-exitcode 86 \
        --print-limit "$SANITIZER_ERRORS" --target-processes all
}

# Starts a check of the bundle if enough time is left: check STAGE RUN LIMIT NEED. Peers have stages of their own at the
# end: our own measurements come first.
check() {
    local limit
    limit=$(own_limit "${given[$1]:-${given[all]:-$3}}")
    try "$1" "$2" "$3" "$4" "$gpu_check" --libtorch "$libraries" --limit "$limit" --no-peer --trace-folder "$out" "$1"
}

# Adds the second runs of what has failed to those that wait, the cheapest kind first.
queue_reruns() {
    local run stage
    for run in blocking eager memcheck memcheck-of-speed; do
        for stage in "${failed[@]}"; do
            # Only checks run again: not the environment, and nothing under a tool.
            [ -n "${times[$stage]:-}" ] || continue
            # None of a peer's code is ours.
            [[ $stage != peer-* ]] || continue
            case $run in
            eager) [[ $GRAPHS = *" $stage "* ]] || continue ;;
            memcheck) [[ $SPEED != *" $stage "* ]] || continue ;;
            # The tool and libtorch's profiler exclude each other.
            memcheck-of-speed) [[ $SPEED = *" $stage "* && $stage != trace ]] || continue ;;
            esac
            waiting+=("$stage ${run%-of-speed}")
        done
    done
    failed=()
}

# Runs again what has failed, within SECONDS together unless they are 0: reruns SECONDS. What could take longer than what is
# left of them waits for the next time.
reruns() {
    local seconds=$1 end=$deadline entry stage run limit need later=()
    if [ "$seconds" -gt 0 ]; then
        seconds=${given[reruns]:-${given[all]:-$seconds}}
        deadline=$((SECONDS + seconds < end ? SECONDS + seconds : end))
    fi
    queue_reruns
    for entry in "${waiting[@]}"; do
        read -r stage run <<<"$entry"
        read -r limit need <<<"${times[$stage]}"
        # What hangs would take all the time that is left.
        if [ -n "${hung[$stage]:-}" ]; then
            limit=$((limit < HUNG ? limit : HUNG)) need=$((need < HUNG ? need : HUNG))
        fi
        # The tool makes kernels several times as slow. It prints an error when it finds it, and a check of speed repeats the
        # same launches: its own limit leaves time for what follows.
        if [ "$run" = memcheck ]; then
            need=$((2 * need))
            [[ $SPEED = *" $stage "* ]] || limit=$((3 * limit))
        fi
        if [ "$deadline" -lt "$end" ] && [ $((deadline - SECONDS)) -lt "$limit" ]; then
            later+=("$entry")
            continue
        fi
        case $run in
        blocking) CUDA_LAUNCH_BLOCKING=1 check "$stage" blocking "$limit" "$need" ;;
        eager) RLT_CUDA_GRAPHS=0 check "$stage" eager "$limit" "$need" ;;
        memcheck) [ -n "${hung[$stage]:-}" ] || sanitizer "$stage" memcheck "$limit" "$need" "$stage" memcheck ;;
        esac
        finish
    done
    waiting=("${later[@]}")
    deadline=$end
}

run_stages() {
    local names limit need name all
    while read -r names limit need; do
        IFS=+ read -r -a all <<<"$names"
        for name in "${all[@]}"; do
            case $name in
            environment) try "$name" first "$limit" "$need" bash "$0" --print-environment "$here_bundle" "$libraries" "$out" ;;
            reruns) reruns "$limit" ;;
            memcheck:* | racecheck:*) sanitizer "$name" first "$limit" "$need" "${name#*:}" "${name%%:*}" ;;
            ncu:*)
                tool "$name" first "$limit" "$need" "${name#*:}" ncu --clock-control none --graph-profiling node \
                    --target-processes all --launch-skip 400 --launch-count 120 --log-file "$out/ncu.txt"
                ;;
            *)
                times[$name]="$limit $need"
                if [ "${#all[@]}" = 1 ]; then
                    check "$name" first "$limit" "$need"
                else
                    # Threads of one check that wait for each other would take the cores of the others.
                    OMP_NUM_THREADS=$((cores > ${#all[@]} ? cores / ${#all[@]} : 1)) check "$name" first "$limit" "$need"
                fi
                ;;
            esac
        done
        finish
    done <<<"$STAGES"
}

# Ends what runs. The page is written at every exit: a run that is ended has learned what its stages had found.
interrupted() {
    trap - TERM INT
    local key
    # shellcheck disable=SC2086 # a stage and a run
    for key in "${!pids[@]}"; do ended ${key} failed "the run was ended"; done
    exit 1
}

python=${RLT_PEER_PYTHON:-python3}
if [ "${1:-}" = --print-environment ]; then
    print_environment "$2/rlt-trainer" "$3" >"$4/environment.txt"
    exit 0
fi

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bundle=$here/../target/gpu-bundle.tar.gz out=${OUT:-} total=560 libraries=
declare -A given=() times=()
while [ $# -gt 0 ]; do
    [ $# -ge 2 ] || usage "$1 needs a value"
    case $1 in
    --bundle) bundle=$2 ;;
    --out) out=$2 ;;
    --seconds) total=$2 ;;
    --limit) given[${2%%=*}]=${2#*=} ;;
    --libtorch) libraries=$2 ;;
    *) usage "$1 is no option: expected --bundle, --out, --seconds, --limit or --libtorch" ;;
    esac
    shift 2
done
[ -n "$out" ] || usage "no folder for the report: expected --out FOLDER, or the variable OUT"
[ -f "$bundle" ] || usage "$bundle is missing: \`make gpu-bundle\` makes it"
mkdir -p "$out" || usage "$out cannot be made"
out=$(cd "$out" && pwd)
page=$out/gpu-report.md findings=$out/findings.jsonl log=$out/output.log
: >"$findings" >"$log"
SECONDS=0
deadline=$((total - RESERVE)) cores=$(nproc)
work=$(mktemp -d)
trap 'write_page; rm -rf "$work"' EXIT
trap interrupted TERM INT
tar --extract --gzip --directory "$work" --file "$bundle" || usage "$bundle cannot be unpacked"
here_bundle=$work/gpu-bundle
gpu_check=$here_bundle/gpu-check
if [ -z "$libraries" ]; then
    libraries=$("$python" -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0] + "/lib")' \
        2>>"$log") || usage "$python has no torch: expected --libtorch FOLDER"
fi
# The toolkit's programs are often not on the path.
for folder in /usr/local/cuda/bin /opt/nvidia/nsight-compute/*/; do
    if [ -d "$folder" ]; then PATH=$PATH:$folder; fi
done
commit=$(cat "$here_bundle/commit" 2>/dev/null || echo unknown)
identity="commit $commit, bundle $(sha256sum "$bundle" | cut -c 1-12)"
# A corrected kernel can be tried without a new bundle.
[ -z "${RLT_KERNELS:-}" ] || identity+=", kernels of $RLT_KERNELS instead of the bundle's"
run_stages
for file in "$out"/*; do
    [ "$(stat --format %s "$file")" -le "$MAX_FILE" ] || truncate --size "$MAX_FILE" "$file"
done
say "$page"
! grep --quiet '"ended":"failed"' "$findings"

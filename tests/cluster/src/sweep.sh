#!/bin/sh
# Ends what there is of one cluster: processes, mounts, cgroups, network namespace, files. Every step holds for a cluster
# that is half started or half swept, so that this is how a cluster is stopped as well as how a crash is cleaned up.
#
#   sweep.sh NAME FOLDER          at once
#   sweep.sh NAME FOLDER later    when standard input ends: when the process that owns the cluster has gone
name=$1
folder=$2

if [ "$3" = later ]; then
    trap '' INT TERM HUP
    cat >/dev/null
fi
# Standard error is the slot's lock when the janitor runs: keep it open to the end.
exec 9>&2 >/dev/null 2>&1 </dev/null

cgroups() {
    find /sys/fs/cgroup/"$name" /sys/fs/cgroup/*/"$name" "$@"
}

living() {
    ip netns pids "$name"
    cgroups -name cgroup.procs -exec cat {} +
}

# A process that was just forked is in neither list yet: ask until both stay empty.
tries=0
while [ "$tries" -lt 3000 ]; do
    pids=$(living)
    [ -n "$pids" ] || break
    # shellcheck disable=SC2086 # one word for each process
    kill -9 $pids
    sleep 0.02
    tries=$((tries + 1))
done

# What containerd and the kubelet keep outside of the folders they are given.
find "$folder" -path '*/k8s.io/*/address' -exec sed 's#^unix://##' {} + | xargs -r rm -f
find /var/log/containers -lname "$folder/*" -delete
for sandbox in "$folder"/node/containerd/io.containerd.grpc.v1.cri/sandboxes/*; do
    rm -f /var/lib/cni/results/*-"${sandbox##*/}"-*
done

awk -v folder="$folder/" 'index($2, folder) == 1 { print $2 }' /proc/self/mounts | sort -r | xargs -r -n 1 umount -l
cgroups -depth -type d -exec rmdir {} \;
ip link del "$name"
ip netns del "$name"
rm -rf --one-file-system "$folder"

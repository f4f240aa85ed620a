#!/usr/bin/env bash
# A real SLURM of one node, for tests: usable as root in a container, without systemd and without accounting.
#
#   workflow/one_node_slurm.sh start DIR     after which sinfo, sbatch and the like work
#   workflow/one_node_slurm.sh slurmd DIR    start the node's daemon again after it was killed
#   workflow/one_node_slurm.sh stop DIR
#
# Needs Debian's slurm-wlm and munge. DIR takes keys, state and logs; outside it there is only a link to the
# settings in /etc/slurm, where jobs look for them whatever their environment. It refuses to replace another one.
set -euo pipefail
[ $# = 2 ] || { sed -n '2,9s/^# \?//p' "$0" >&2; exit 2; }
mkdir -p "$2"
dir=$(realpath "$2")
link=/etc/slurm/slurm.conf
export PATH=$PATH:/usr/sbin

until_true() { # SECONDS COMMAND...
    local end=$((SECONDS + $1))
    shift
    until "$@" > /dev/null 2>&1; do
        [ $SECONDS -lt $end ] || { echo "one_node_slurm: gave up on: $*; see $dir/*.log" >&2; exit 1; }
        sleep 0.2
    done
}

is_idle() { sinfo --noheader --format %T | grep -qx -e idle -e mixed; }

configure() {
    local node
    if [ -e $link ] && [ ! $link -ef "$dir/slurm.conf" ]; then
        echo "one_node_slurm: this machine has a SLURM already: $link" >&2
        exit 1
    fi
    node=$(hostname -s)
    mkdir -p "$dir/state" "$dir/spool"
    chmod 755 "$dir"
    (umask 077 && head -c 128 /dev/urandom > "$dir/munge.key")
    cat > "$dir/slurm.conf" <<END
ClusterName=one
SlurmctldHost=$node(127.0.0.1)
SlurmctldPort=26817
SlurmdPort=26818
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/munge.socket
CredType=cred/munge
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SlurmdTimeout=20
KillWait=2
ReturnToService=2
NodeName=$node NodeAddr=127.0.0.1 CPUs=$(nproc) RealMemory=$(awk "/MemTotal/ {print int(\$2 / 1024)}" /proc/meminfo) State=UNKNOWN
PartitionName=main Nodes=$node Default=YES MaxTime=INFINITE State=UP
END
    mkdir -p ${link%/*}
    ln -sf "$dir/slurm.conf" $link
}

case $1 in
    start)
        configure
        munged --force --key-file="$dir/munge.key" --socket="$dir/munge.socket" --pid-file="$dir/munged.pid" \
            --log-file="$dir/munged.log" --seed-file="$dir/munge.seed"
        slurmctld
        slurmd
        until_true 30 is_idle
        ;;
    slurmd)
        slurmd
        until_true 60 is_idle
        ;;
    stop)
        scancel --user root --quiet 2> /dev/null || true
        for daemon in slurmd slurmctld munged; do
            [ ! -s "$dir/$daemon.pid" ] || kill "$(cat "$dir/$daemon.pid")" 2> /dev/null || true
        done
        [ ! $link -ef "$dir/slurm.conf" ] || rm $link
        ;;
    *) exec "$0" ;;
esac

#!/bin/busybox sh
# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

# shellcheck shell=dash
# PID 1 of the measuring guest, see nova_vqos/guest.py for what it prints.
# Its options come from the kernel command line:
#   vqos.kinds=sysbench,sha256   kinds of work, a round of each in turn
#   vqos.rounds=N                rounds in all, then power off; 0: for ever
#   vqos.events.KIND=N           events in a round of this kind

mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
# A kernel message in the midst of a line would spoil it.
dmesg -n 1

kinds=sysbench
rounds=0
events_sysbench=@sysbench@
events_sha256=@sha256@
events_gzip=@gzip@
events_awk=@awk@
events_sort=@sort@
# Its words, not its lines.
# shellcheck disable=SC2013
for word in $(cat /proc/cmdline); do
    value=${word#*=}
    case $word in
        vqos.kinds=*) kinds=$(echo "$value" | tr ',' ' ') ;;
        vqos.rounds=*) rounds=$value ;;
        vqos.events.sysbench=*) events_sysbench=$value ;;
        vqos.events.sha256=*) events_sha256=$value ;;
        vqos.events.gzip=*) events_gzip=$value ;;
        vqos.events.awk=*) events_awk=$value ;;
        vqos.events.sort=*) events_sort=$value ;;
    esac
done

# moment WHAT KIND [MORE]; without a subshell, which a guest under emulation
# would take milliseconds for, out of the work that it measures.
moment() {
    read -r up_s _ < /proc/uptime
    echo "$1 $2 $up_s${3:+ $3}"
}

# The clock in microseconds: /proc/uptime has only hundredths.
now_us() {
    stamp=$(echo | ts %.s)
    stamp=${stamp% }
    echo "${stamp%.*}${stamp#*.}"
}

start() { moment vqos-start "$1"; }
stop() { moment vqos-stop "$1"; }

# report KIND EVENTS ELAPSED_S
report() { moment vqos "$1" "$2 $3"; }

# sysbench names the moments itself, when it has started and when it is done
# ("CPU speed:" comes first then); it is line buffered also into a pipe.
round_of_sysbench() {
    sysbench cpu --threads=1 --time=0 --events="$events_sysbench" \
        --cpu-max-prime=@max_prime@ run | while read -r line; do
        case $line in
            'Threads started!') start sysbench ;;
            'CPU speed:') stop sysbench ;;
            'total time:'*) elapsed=${line##* } ;;
            'total number of events:'*)
                report sysbench "${line##* }" "${elapsed%s}" ;;
        esac
    done
}

sha256() { sha256sum /tmp/text > /dev/null; }
gzip_() { gzip -c /tmp/text > /dev/null; }
awk_() { awk '{ n[$1 % 97] += length($2) } END { print n[7] }' /tmp/text \
    > /dev/null; }
sort_() { sort -k 2 /tmp/lines > /dev/null; }

# round_of KIND FUNCTION EVENTS
round_of() {
    start "$1"
    began_us=$(now_us)
    done_events=0
    while [ "$done_events" -lt "$3" ]; do
        "$2"
        done_events=$((done_events + 1))
    done
    elapsed_us=$(($(now_us) - began_us))
    stop "$1"
    report "$1" "$3" "$(printf '%d.%06d' $((elapsed_us / 1000000)) \
        $((elapsed_us % 1000000)))"
}

# The same text at each boot: numbered lines of pseudo-random words.
awk 'BEGIN {
    seed = 1
    while (size < 262144) {
        seed = (seed * 1103515245 + 12345) % 2147483648
        line = sprintf("%d %x word%d", ++count, seed, seed % 997)
        size += length(line) + 1
        print line
    }
}' > /tmp/text
head -c 65536 /tmp/text > /tmp/lines

done_rounds=0
while :; do
    for kind in $kinds; do
        case $kind in
            sysbench) round_of_sysbench ;;
            sha256) round_of sha256 sha256 "$events_sha256" ;;
            gzip) round_of gzip gzip_ "$events_gzip" ;;
            awk) round_of awk awk_ "$events_awk" ;;
            sort) round_of sort sort_ "$events_sort" ;;
        esac
        done_rounds=$((done_rounds + 1))
        if [ "$done_rounds" -eq "$rounds" ]; then
            echo vqos-done
            poweroff -f
        fi
    done
done

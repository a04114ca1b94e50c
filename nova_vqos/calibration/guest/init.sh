#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0

# shellcheck shell=dash
# PID 1 of the measuring guest, see nova_vqos.calibration.guest for what it prints.
# Its options come from the kernel command line:
#   vqos.kinds=sysbench,sha512   kinds of work, a round of each in turn
#   vqos.rounds=N                rounds in all, then power off; 0: for ever
#   vqos.events.KIND=N           events in a round of this kind
#   vqos.spinners=N              processes that spin beside

mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
# A kernel message in the midst of a line would spoil it.
dmesg -n 1

kinds=sysbench
rounds=0
spinners=0
defaults='@defaults@'
for default in $defaults; do
    echo "${default#*=}" > "/run/events.${default%%=*}"
done
# Its words, not its lines.
# shellcheck disable=SC2013
for word in $(cat /proc/cmdline); do
    value=${word#*=}
    case $word in
        vqos.kinds=*) kinds=$(echo "$value" | tr ',' ' ') ;;
        vqos.rounds=*) rounds=$value ;;
        vqos.events.*=*)
            kind=${word#vqos.events.}
            echo "$value" > "/run/events.${kind%%=*}" ;;
        vqos.spinners=*) spinners=$value ;;
    esac
done
while [ "$spinners" -gt 0 ]; do
    while :; do :; done &
    spinners=$((spinners - 1))
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

# report_us KIND EVENTS ELAPSED_US
report_us() {
    report "$1" "$2" "$(printf '%d.%06d' $(($3 / 1000000)) \
        $(($3 % 1000000)))"
}

# round_of_sysbench KIND ARGUMENT...; it names the moments itself, when it has
# started and when it is done (what comes first then depends on the test); it
# is line buffered also into a pipe.
round_of_sysbench() {
    round_kind=$1
    shift
    sysbench "$@" --threads=1 --time=0 run | {
        at_work=
        while read -r line; do
            case $line in
                'Threads started!') at_work=yes; start "$round_kind" ;;
                'CPU speed:' | 'Total operations:'* | 'General statistics:')
                    [ -z "$at_work" ] || stop "$round_kind"
                    at_work= ;;
                'total time:'*) elapsed=${line##* } ;;
                'total number of events:'*)
                    report "$round_kind" "${line##* }" "${elapsed%s}" ;;
            esac
        done
    }
}

sha512() { sha512sum /text > /dev/null; }
gzip_() { gzip -c /text > /dev/null; }
gunzip_() { gunzip -c /text.gz > /dev/null; }
awk_() { awk '@awk_program@' /text > /dev/null; }

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
    report_us "$1" "$3" "$elapsed_us"
}

# round_of_file KIND EVENTS: of work that is a script in /kinds.
round_of_file() {
    start "$1"
    began_us=$(now_us)
    if ! sh "/kinds/$1" "$2" > /dev/null; then
        echo "$1 fails in the guest"
        poweroff -f
    fi
    elapsed_us=$(($(now_us) - began_us))
    stop "$1"
    report_us "$1" "$2" "$elapsed_us"
}

done_rounds=0
while :; do
    for kind in $kinds; do
        read -r events < "/run/events.$kind"
        case $kind in
            sysbench)
                round_of_sysbench sysbench cpu --events="$events" \
                    --cpu-max-prime=@max_prime@ ;;
            nbody | html | image | chase)
                round_of_sysbench "$kind" "/$kind.lua" --events="$events" ;;
            stream)
                round_of_sysbench stream memory --memory-block-size=64M \
                    --memory-oper=read --memory-access-mode=seq \
                    --memory-total-size=$((64 * events))M ;;
            sha512) round_of sha512 sha512 "$events" ;;
            gzip) round_of gzip gzip_ "$events" ;;
            gunzip) round_of gunzip gunzip_ "$events" ;;
            awk) round_of awk awk_ "$events" ;;
            *) round_of_file "$kind" "$events" ;;
        esac
        done_rounds=$((done_rounds + 1))
        if [ "$done_rounds" -eq "$rounds" ]; then
            echo vqos-done
            poweroff -f
        fi
    done
done

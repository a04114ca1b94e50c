#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0

# shellcheck shell=dash
# PID 1 of a guest that does I/O, see ioguest.py. Its options come from the
# kernel command line:
#   vqos.address=A/LENGTH    of its interface
#   vqos.readers=N           processes that read its disk all the time
#   vqos.spin=1              another that only spins
#   vqos.send=A              another that sends datagrams there all the time

mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
dmesg -n 1

while read -r module; do
    insmod "/modules/$module" || echo "vqos-failed $module"
done < /modules/order

readers=0
spin=
send=
# Its words, not its lines.
# shellcheck disable=SC2013
for word in $(cat /proc/cmdline); do
    value=${word#*=}
    case $word in
        vqos.address=*)
            ip address add "$value" dev eth0
            ip link set lo up
            ip link set eth0 up ;;
        vqos.readers=*) readers=$value ;;
        vqos.spin=*) spin=$value ;;
        vqos.send=*) send=$value ;;
    esac
done

# Connections that are over are not to be remembered: ever more of them would
# make each request dearer than the last.
echo 0 > /proc/sys/net/ipv4/tcp_max_tw_buckets
httpd -p 80 -h /www

read_disk() {
    # Past the guest's page cache: each block is a request to the host.
    while dd if=/dev/vda of=/dev/null bs=4k iflag=direct 2>/run/dd; do
        :
    done
    echo vqos-failed disk
}

while [ "$readers" -gt 0 ]; do
    read_disk &
    readers=$((readers - 1))
done
if [ -n "$spin" ]; then
    while :; do :; done &
fi
if [ -n "$send" ]; then
    # To the discard service, each a frame of 1000 bytes. A packet that gets no
    # answer yet, or a bad one, ends dd.
    bash -c "while :; do
        dd if=/dev/zero bs=958 > /dev/udp/$send/9 2> /run/dd || sleep 0.1
    done" &
fi
echo vqos-ready
# PID 1 must not end.
while :; do sleep 1000; done

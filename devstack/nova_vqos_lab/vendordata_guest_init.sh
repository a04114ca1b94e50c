#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0

# shellcheck shell=dash
# PID 1 of a guest that reads its vendordata, see vendordata.py. It computes all
# the time, so that its limit holds it back, and prints each answer in a line.

mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
dmesg -n 1

while read -r module; do
    insmod "/modules/$module" || echo "vqos-failed $module"
done < /modules/order
while :; do :; done &

# It comes while the guest runs.
while [ ! -e /sys/class/net/eth0/address ]; do
    sleep 0.2
done
# The lab puts the address of the server into that of its interface.
IFS=: read -r _ _ _ _ third fourth < /sys/class/net/eth0/address
ip address add "169.254.$((0x$third)).$((0x$fourth))/16" dev eth0
ip link set eth0 up

while :; do
    # Without -T, with which Debian's static busybox crashes.
    echo "vqos-vendordata $(wget -q -O - \
        http://169.254.169.254/openstack/latest/vendor_data2.json)"
    sleep 2
done

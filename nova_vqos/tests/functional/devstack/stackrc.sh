#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# What devstack's own files have set when they source a plugin's, and its
# functions. For the environment see run.sh.

# shellcheck disable=SC2034

HARNESS_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export RECORD=$ROOT/harness/record ROOT
LOGS=$ROOT/harness
# shellcheck source=nova_vqos/tests/functional/devstack/functions.sh
source "$HARNESS_DIR/functions.sh"

# What devstack's own files set. local.conf came before.
DISABLED_SERVICES=${DISABLED_SERVICES:-}
DEST=$ROOT/opt/stack
STACK_USER=$(id -un)
NOVA_DIR=$DEST/nova
NOVA_REPO=https://example.org/nova
NOVA_BRANCH=master
NOVA_BIN_DIR=$ROOT/usr/local/bin
NOVA_CONF=$ROOT/etc/nova/nova.conf
NOVA_CPU_CONF=$ROOT/etc/nova/nova-cpu.conf
NOVA_STATE_PATH=$ROOT/data/nova
PLACEMENT_CONF=$ROOT/etc/placement/placement.conf
VIRT_DRIVER=${VIRT_DRIVER:-libvirt}
LIBVIRT_TYPE=${LIBVIRT_TYPE:-kvm}
LIBVIRT_DAEMON=libvirtd
SYSTEMD_DIR=$ROOT/etc/systemd/system
TEMPEST_CONFIG=$DEST/tempest/etc/tempest.conf
PROVIDER=${PROVIDER:-host.example.org}
REPORTED_PROFILE=$ROOT/etc/nova-vqos/profile.yaml

# Ours, below ROOT: the defaults are tested by their text.
NOVA_VQOS_CONF_DIR=$ROOT/etc/nova-vqos
NOVA_VQOS_RUN_DIR=$ROOT/run/nova-vqos
NOVA_VQOS_STATE_DIR=$ROOT/var/lib/nova-vqos
NOVA_VQOS_CACHE_DIR=$ROOT/var/cache/nova-vqos
NOVA_VQOS_HOOKS_DIR=$ROOT/etc/libvirt/hooks
# libvirt's own test driver: the agent runs for real, on no guests.
NOVA_VQOS_LIBVIRT_URI=test:///default

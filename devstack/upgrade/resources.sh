#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# resources.sh PHASE [SIDE]: what has to survive an upgrade by grenade: a
# server with CPU units, its claim in Placement, and its cap. For one compute
# host, whose libvirt this machine has.

set -o errexit

# shellcheck source=/dev/null
{
    source "$GRENADE_DIR/grenaderc"
    source "$GRENADE_DIR/functions"
    source "$TOP_DIR/openrc" admin admin
}
RUN_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=devstack/settings
source "$RUN_DIR/../settings"
# shellcheck source=devstack/lib/nova_vqos
source "$RUN_DIR/../lib/nova_vqos"

set -o xtrace

NAME=nova_vqos_grenade
CU=20

# create: the server, as the administrator, without a network: nothing of ours
# is in one.
function create {
    local cap uuid
    openstack flavor create --ram 192 --disk 0 --vcpus 1 \
        --property "resources:$NOVA_VQOS_RESOURCE=$CU" \
        --property vqos:dd_billing=account $NAME
    openstack --os-compute-api-version 2.37 server create \
        --image "$DEFAULT_IMAGE_NAME" --flavor $NAME --nic none --wait $NAME
    uuid=$(openstack server show $NAME -f value -c id)
    cap=$(_cap "$uuid")
    if [[ ! "$cap" =~ ^[1-9][0-9]*/[1-9][0-9]*$ ]]; then
        die $LINENO "$NAME ($uuid) has a cap of '$cap' us"
    fi
    resource_save nova_vqos server_uuid "$uuid"
    resource_save nova_vqos cap "$cap"
}

# verify: the claim, the cap, and that the host still sells units, which needs
# nova-compute with our driver, the agent, and a valid profile.
function verify {
    local claim uuid
    uuid=$(resource_get nova_vqos server_uuid)
    claim=$(openstack resource provider allocation show "$uuid" -f value \
        -c resources | sed -n "s/.*$NOVA_VQOS_RESOURCE.: *\([0-9]*\).*/\1/p")
    if [[ "$claim" != "$CU" ]]; then
        die $LINENO "$NAME ($uuid) has claimed '$claim' CPU units, not $CU"
    fi
    verify_noapi
    check_nova_vqos_placement
}

# verify_noapi: the cap, which libvirt and the kernel keep without us.
function verify_noapi {
    local cap was uuid
    uuid=$(resource_get nova_vqos server_uuid)
    was=$(resource_get nova_vqos cap)
    cap=$(_cap "$uuid")
    if [[ "$cap" != "$was" ]]; then
        die $LINENO "$NAME ($uuid) has a cap of '$cap' us, it was $was"
    fi
}

# destroy: all of it; nothing where it is gone.
function destroy {
    if openstack server show $NAME; then
        openstack server delete --wait $NAME
    fi
    if openstack flavor show $NAME; then
        openstack flavor delete $NAME
    fi
}

# _cap UUID: QUOTA/PERIOD of each of its vCPUs, as libvirt reads it from the
# kernel.
function _cap {
    sudo virsh -c "$NOVA_VQOS_LIBVIRT_URI" schedinfo "$1" |
        awk -F ' *: *' '$1 == "vcpu_period" { period = $2 }
            $1 == "vcpu_quota" { quota = $2 }
            END { print quota "/" period }'
}

case "$1" in
    create) create ;;
    verify) verify ;;
    verify_noapi) verify_noapi ;;
    destroy) destroy ;;
    force_destroy)
        set +o errexit
        destroy
        ;;
esac

#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh MODE: what devstack does around the plugin, in its order.
#
# prepare  a machine that devstack has never seen
# stack    stack.sh
# phases   the phases of stack.sh, on the files that it left
# unstack  unstack.sh
# clean    clean.sh, but that it leaves the files of Nova, for a look at them
# grenade  SCRIPT ARGUMENT...: a script of devstack/upgrade, as grenade does;
#          settings: prints UPGRADE_PROJECTS after it, to standard error
#
# From the environment: ROOT, CHECKOUT, PROGRAMS (where the real ones of
# nova_vqos are), ENABLED_SERVICES, and settings of local.conf. With
# NOVA_CPU_CONF_IS=late nova-compute's file is copied when nova-compute starts,
# as devstack did once, rather than made before post-config.

# As stack.sh, and nounset, which it has where it is asked for.
set -o errexit -o nounset

# shellcheck source=nova_vqos/tests/functional/devstack/stackrc.sh
source "$(dirname "${BASH_SOURCE[0]}")/stackrc.sh"
# shellcheck source=devstack/settings
source "$CHECKOUT/devstack/settings"

# configure_nova: Nova's files, as devstack makes them at each stack.sh.
function configure_nova {
    rm -f "$NOVA_CONF"
    iniset "$NOVA_CONF" DEFAULT compute_driver \
        "${COMPUTE_DRIVER:-libvirt.LibvirtDriver}"
    iniset "$NOVA_CONF" DEFAULT transport_url rabbit://u:p@127.0.0.1:1/
    iniset "$NOVA_CONF" libvirt virt_type "$LIBVIRT_TYPE"
    if [[ -n "${NOVA_FILTERS:-}" ]]; then
        iniset "$NOVA_CONF" filter_scheduler enabled_filters "$NOVA_FILTERS"
    fi
    if [[ -n "${NOVA_WEIGHERS:-}" ]]; then
        iniset "$NOVA_CONF" filter_scheduler weight_classes "$NOVA_WEIGHERS"
    fi
    if [[ -n "${AVAILABLE_FILTERS:-}" ]]; then
        # shellcheck disable=SC2086
        iniset_multiline "$NOVA_CONF" filter_scheduler available_filters \
            $AVAILABLE_FILTERS
    fi
    if [[ ${NOVA_CPU_CONF_IS:-early} == early ]]; then
        configure_nova_cpu
    fi
}

# configure_placement: its file, likewise.
function configure_placement {
    if is_service_enabled placement-api; then
        rm -f "$PLACEMENT_CONF"
        iniset "$PLACEMENT_CONF" api auth_strategy keystone
    fi
}

# configure_nova_cpu: the bus of nova-compute is its cell's.
function configure_nova_cpu {
    if is_service_enabled n-cpu && [[ -z "${CELLSV2_SETUP:-}" ]]; then
        cp "$NOVA_CONF" "$NOVA_CPU_CONF"
        iniset "$NOVA_CPU_CONF" DEFAULT transport_url \
            'rabbit://u:p@127.0.0.1:1/nova_cell1?a=1\&b=2'
        iniset "$NOVA_CPU_CONF" oslo_messaging_rabbit heartbeat_rate 3
    fi
}

# merge_local_conf: [[post-config|...]] of local.conf, from lines of FILE
# SECTION OPTION VALUE in POST_CONFIG.
function merge_local_conf {
    local file section option value
    while read -r file section option value; do
        if [[ -n "$file" ]]; then
            iniset "${!file}" "$section" "$option" "$value"
        fi
    done <<<"${POST_CONFIG:-}"
}

# plugin MODE [PHASE]: as devstack's run_plugins.
function plugin {
    # shellcheck source=devstack/plugin.sh
    source "$CHECKOUT/devstack/plugin.sh" "$@"
}

# stack yes|no: whether Nova's files are made.
function stack {
    local make_files=$1
    rm -f "$LOGS/asked"
    plugin stack pre-install
    plugin stack install
    if [[ $make_files == yes ]]; then
        configure_placement
        configure_nova
    fi
    plugin stack post-config
    merge_local_conf
    if [[ $make_files == yes && ${NOVA_CPU_CONF_IS:-early} == late ]]; then
        configure_nova_cpu
    fi
    plugin stack extra
    plugin stack test-config
}

# prepare: what devstack itself has put there before the plugin's turn.
function prepare {
    local name modules=() drivers=()
    mkdir -p "$ROOT"/{harness,run,var/lib,etc/nova,etc/systemd/system} \
        "$ROOT"/{etc/placement,etc/libvirt/hooks,usr/local/bin,var/cache} \
        "$NOVA_DIR/nova/virt" "$(dirname "$TEMPEST_CONFIG")"
    # Nova's tree: that which is tested with, but a directory of its own for
    # drivers.
    for name in "$NOVA_PACKAGE"/*; do
        [[ $name == */virt ]] || modules+=("$name")
    done
    for name in "$NOVA_PACKAGE"/virt/*; do
        [[ $name == */vqos ]] || drivers+=("$name")
    done
    ln -s "${modules[@]}" "$NOVA_DIR/nova"
    ln -s "${drivers[@]}" "$NOVA_DIR/nova/virt"
    printf '#!/bin/sh\nexec "%s" "$@"\n' "$PYTHON" >"$NOVA_BIN_DIR/python3"
    chmod 755 "$NOVA_BIN_DIR/python3"
    configure_placement
    configure_nova
    if is_service_enabled tempest; then
        iniset "$TEMPEST_CONFIG" compute-feature-enabled \
            scheduler_enabled_filters "${TEMPEST_FILTERS:-ComputeFilter}"
    fi
}

# grenade SCRIPT ARGUMENT...: with the directories that it has for scripts.
function grenade {
    local file top=$LOGS/grenade script=$1
    shift
    mkdir -p "$top/lib"
    for file in grenaderc stackrc openrc lib/{apache,nova,rpc_backend,tls}; do
        : >"$top/$file"
    done
    echo "source '$HARNESS_DIR/grenade.sh'" >"$top/functions"
    # Both trees of devstack are the same.
    export GRENADE_DIR=$top BASE_DEVSTACK_DIR=$top TARGET_DEVSTACK_DIR=$top
    export TOP_DIR=$top BASE_DEVSTACK_BRANCH=base TARGET_DEVSTACK_BRANCH=master
    if [[ $script == settings ]]; then
        # shellcheck source=nova_vqos/tests/functional/devstack/grenade.sh
        source "$top/functions"
        # shellcheck source=devstack/upgrade/settings
        source "$CHECKOUT/devstack/upgrade/settings"
        echo "UPGRADE_PROJECTS:$UPGRADE_PROJECTS" >&2
    else
        "$CHECKOUT/devstack/upgrade/$script" "$@"
    fi
}

case "$1" in
    prepare) prepare ;;
    grenade)
        shift
        grenade "$@"
        ;;
    stack) stack yes ;;
    phases) stack no ;;
    unstack) plugin unstack ;;
    clean)
        plugin unstack
        plugin clean
        ;;
esac

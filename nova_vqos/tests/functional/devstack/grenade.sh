#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The functions of grenade, and those of devstack that only its scripts call,
# each after the contract in its comment, which is that of grenade's functions
# and inc/*, and of devstack's functions-common, written anew.

# shellcheck disable=SC2034
# shellcheck source=nova_vqos/tests/functional/devstack/stackrc.sh
source "$(dirname "${BASH_SOURCE[0]}")/stackrc.sh"

declare -A GITREPO=([nova_vqos]=https://example.org/nova_vqos)
declare -A GITBRANCH=([nova_vqos]=main)

# register_project_for_upgrade PROJECT: the last one so far.
function register_project_for_upgrade {
    UPGRADE_PROJECTS+=" $1"
}

# devstack_localrc base|target WORD...: a line of that localrc.
function devstack_localrc {
    record devstack_localrc "$@"
}

# upgrade_project PROJECT DIRECTORY BASE-BRANCH TARGET-BRANCH: runs the
# project's upgrade script for a release, if it has one.
function upgrade_project {
    record upgrade_project "$1" "$3" "$4"
}

# git_clone URL DIRECTORY BRANCH: unless it is there. Here: the new tree of
# Nova, which nobody has linked a driver into.
function git_clone {
    record git_clone "$@"
    rm -f "$2/nova/virt/vqos"
}

# ensure_services_stopped SERVICE...: waits until no unit of these names runs;
# dies where that takes too long.
function ensure_services_stopped {
    if [[ -f "$LOGS/$1.pid" ]]; then
        die $LINENO "$1 is still running"
    fi
}

# resource_save PROJECT KEY VALUE, resource_get PROJECT KEY: what a phase of
# resources.sh keeps for the next.
function resource_save {
    iniset "$LOGS/grenade.ini" "$@"
}

function resource_get {
    iniget "$LOGS/grenade.ini" "$@"
}

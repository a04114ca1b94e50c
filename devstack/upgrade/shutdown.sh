#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# What grenade runs to stop the base: the agent. Caps stay.

set -o errexit

# shellcheck source=/dev/null
{
    source "$GRENADE_DIR/grenaderc"
    source "$GRENADE_DIR/functions"
    source "$BASE_DEVSTACK_DIR/functions"
    source "$BASE_DEVSTACK_DIR/stackrc"
    source "$BASE_DEVSTACK_DIR/lib/tls"
    source "$BASE_DEVSTACK_DIR/lib/apache"
    source "$BASE_DEVSTACK_DIR/lib/nova"
}
RUN_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=devstack/settings
source "$RUN_DIR/../settings"
# shellcheck source=devstack/lib/nova_vqos
source "$RUN_DIR/../lib/nova_vqos"

set -o xtrace

if is_service_enabled vqos-agent; then
    stop_nova_vqos
    ensure_services_stopped vqos-agent
fi

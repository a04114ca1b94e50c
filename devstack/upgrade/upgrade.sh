#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# What grenade runs to upgrade nova_vqos, while all is stopped, before Nova is
# upgraded: see settings. All files of Nova, agent and hook stay those of the
# base: they have to be good enough for the target.

set -o errexit

# shellcheck source=/dev/null
{
    source "$GRENADE_DIR/grenaderc"
    source "$GRENADE_DIR/functions"
    source "$TARGET_DEVSTACK_DIR/stackrc"
    source "$TARGET_DEVSTACK_DIR/lib/tls"
    source "$TARGET_DEVSTACK_DIR/lib/apache"
    source "$TARGET_DEVSTACK_DIR/lib/nova"
    source "$TARGET_DEVSTACK_DIR/lib/rpc_backend"
}
RUN_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=devstack/settings
source "$RUN_DIR/../settings"
# shellcheck source=devstack/lib/nova_vqos
source "$RUN_DIR/../lib/nova_vqos"

set -o xtrace

# The driver is linked into the target's Nova, which installs itself later.
git_clone "$NOVA_REPO" "$NOVA_DIR" "$NOVA_BRANCH"
install_nova_vqos
upgrade_project nova_vqos "$RUN_DIR" "$BASE_DEVSTACK_BRANCH" \
    "$TARGET_DEVSTACK_BRANCH"
if is_service_enabled n-cpu; then
    install_nova_vqos_hook
    start_nova_vqos
    check_nova_vqos_agent
fi

#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# What devstack calls, once for each phase: source plugin.sh MODE [PHASE].
# https://docs.openstack.org/devstack/latest/plugins.html says when that is.
# What is done is in devstack/lib/nova_vqos. Every phase can be run again, and
# then changes nothing.
#
# What a host gets follows from the services of Nova that are enabled there:
#
# any of Nova (n-api, ...)  the package, and with it the API's validators
# n-sch                     the scheduler's filter
# placement-api             no repetition of claims within Placement
# n-cpu                     compute driver, hook, profile and agent

# shellcheck source=devstack/lib/nova_vqos
source "$NOVA_VQOS_DIR/devstack/lib/nova_vqos"

if is_service_enabled nova; then
    case "$1 ${2:-}" in
        "stack pre-install")
            # After devstack has set up the system, before any source is
            # installed. Stops here where a setting cannot work, then
            # installs packages of the distribution.
            echo_summary "Checking the settings of nova_vqos"
            check_nova_vqos_settings
            install_nova_vqos_packages
            ;;
        "stack install")
            # After Nova was installed, before anything is configured.
            echo_summary "Installing nova_vqos"
            install_nova_vqos
            ;;
        "stack post-config")
            # The files of Nova's services are there, the services are not
            # started yet, and the post-config sections of local.conf, which
            # win, are merged afterwards.
            echo_summary "Configuring nova_vqos"
            configure_nova_vqos
            ;;
        "stack extra")
            # All services of devstack itself have been started.
            echo_summary "Starting nova_vqos"
            start_nova_vqos
            check_nova_vqos
            ;;
        "stack test-config")
            # All is running; tempest, if enabled, has its file.
            echo_summary "Configuring tempest for nova_vqos"
            configure_tempest_nova_vqos
            ;;
    esac
fi

# NOTE: without a look at what is enabled: local.conf may have changed since.
case "$1" in
    unstack)
        # Before other services are stopped. Files stay for the next stack.sh.
        stop_nova_vqos
        ;;
    clean)
        # After unstack.sh. Nothing is left but the checkout and packages.
        stop_nova_vqos
        cleanup_nova_vqos
        ;;
esac

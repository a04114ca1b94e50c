#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The functions of devstack that the plugin calls, each after the contract in
# its comment, which is that of devstack's functions-common, functions,
# inc/ini-config, inc/python and lib/*, written anew. Nothing outside $ROOT is
# touched. What would reach the machine (packages, pip, systemd, libvirt) is
# written to $RECORD, one call a line, and its effect made below $ROOT.

# shellcheck disable=SC2034

# record WORD...: a call, for the test to look at.
function record {
    printf '%s\n' "$*" >>"$RECORD"
}


# Messages
# --------

# echo_summary MESSAGE...: to the log and the terminal.
function echo_summary {
    echo "== $*"
}

# die LINE MESSAGE...: prints an error with its place, and ends the process
# with a status other than 0.
function die {
    local line=$1
    shift
    echo "[ERROR] ${BASH_SOURCE[1]}:$line $*" >&2
    exit 1
}

# warn LINE MESSAGE...: prints a warning; returns.
function warn {
    local line=$1
    shift
    echo "[WARNING] ${BASH_SOURCE[1]}:$line $*" >&2
}


# Settings
# --------

# trueorfalse DEFAULT NAME: prints True or False, whichever the variable of
# that name means, or the default where it is unset or means neither.
function trueorfalse {
    case "${!2:-}" in
        1 | yes | Yes | YES | true | True | TRUE) echo True ;;
        0 | no | No | NO | false | False | FALSE) echo False ;;
        *) echo "$1" ;;
    esac
}

# define_plugin NAME: does nothing; tells tools the name.
function define_plugin {
    :
}

# is_service_enabled SERVICE...: whether any of them is in ENABLED_SERVICES;
# nova is wherever any service n-* is, unless one nova* is disabled.
function is_service_enabled {
    local service
    for service in "$@"; do
        if [[ ",$ENABLED_SERVICES," == *",$service,"* ]]; then
            return 0
        fi
        # The former list has any, the latter none.
        case "$service,$ENABLED_SERVICES;,$DISABLED_SERVICES" in
            *";"*",nova"*) ;;
            nova*",n-"*";"*) return 0 ;;
        esac
    done
    return 1
}

# enable_service SERVICE...: adds to ENABLED_SERVICES what is neither there
# nor disabled.
function enable_service {
    local service
    for service in "$@"; do
        if [[ ",$DISABLED_SERVICES," == *",$service,"* ]]; then
            warn $LINENO "$service has been disabled"
        elif ! is_service_enabled "$service"; then
            ENABLED_SERVICES+=,$service
        fi
    done
}

# is_ubuntu: whether packages are Debian's.
function is_ubuntu {
    return 0
}


# Ini files
# ---------

# _ini FILE SECTION OPTION MODE [VALUE...]: the work of those below. A file
# keeps its mode and owner.
function _ini {
    local file=$1 changed
    [[ -f "$file" ]] || return 2
    changed=$(
        section="[$2]" option=$3 mode=$4 values=$(printf '%s\n' "${@:5}") \
            awk '
            function is_option() {
                return inside && match($0, /^[^ \t=]+[ \t]*=[ \t]*/) &&
                    $0 ~ "^" ENVIRON["option"] "[ \t]*="
            }
            /^\[/ { inside = index($0, ENVIRON["section"]) == 1 }
            is_option() && ENVIRON["mode"] == "get" {
                print substr($0, RLENGTH + 1)
            }
            is_option() && ENVIRON["mode"] == "replace" {
                found = substr($0, 1, RLENGTH)
                value = ENVIRON["values"]
                gsub(/\\&/, "\\&", value)
                $0 = found value
            }
            is_option() && ENVIRON["mode"] == "add" { next }
            ENVIRON["mode"] != "get" { print }
            inside && /^\[/ && ENVIRON["mode"] == "add" {
                count = split(ENVIRON["values"], values, "\n")
                for (i = 1; i <= count; i++) {
                    gsub(/\\&/, "\\&", values[i])
                    print ENVIRON["option"] " = " values[i]
                }
            }' "$file"
        echo end
    )
    changed=${changed%end}
    if [[ $4 == get ]]; then
        printf '%s' "$changed"
    else
        printf '%s' "$changed" >"$file"
    fi
}

# _ini_section FILE SECTION: makes file and section, after an empty line.
function _ini_section {
    if ! grep -qsF "[$2]" "$1"; then
        printf '\n[%s]\n' "$2" >>"$1"
    fi
}

# iniget FILE SECTION OPTION: prints the value, or an empty line; fails where
# there is no file.
function iniget {
    local value
    value=$(_ini "$1" "$2" "$3" get) || return
    # shellcheck disable=SC2086
    echo $value
}

# iniget_multiline FILE SECTION OPTION: prints all values of an option that is
# repeated, in one line.
function iniget_multiline {
    iniget "$@"
}

# iniset FILE SECTION OPTION VALUE: sets it where it is, else as the first of
# its section; makes section and file. The value goes through sed: & has to be
# escaped.
function iniset {
    local mode=add
    if [[ -z "$2" || -z "$3" ]]; then
        return 0
    fi
    if [[ "$4" =~ (^|[^\\])'&' ]]; then
        die $LINENO "sed would not take this value as it is: $4"
    fi
    _ini_section "$1" "$2"
    if [[ -n $(_ini "$1" "$2" "$3" get) ]]; then
        mode=replace
    fi
    _ini "$1" "$2" "$3" $mode "$4"
}

# iniset_multiline FILE SECTION OPTION VALUE...: repeats the option for each
# of the values, which have no spaces, and no others.
function iniset_multiline {
    _ini_section "$1" "$2"
    _ini "$1" "$2" "$3" add "${@:4}"
}


# Installation
# ------------

# install_package NAME...: the distribution's packages, if not there yet.
function install_package {
    record install_package "$@"
}

# setup_develop DIRECTORY: pip install -e of it, into the environment of all
# services. Here: the programs that setup.cfg names, those that measure the
# machine replaced by ones that take no time.
function setup_develop {
    local name
    record setup_develop "$@"
    [[ -f "$1/setup.cfg" ]] || die $LINENO "$1 is no project"
    for name in agent libvirt-hook; do
        ln -sfn "$PROGRAMS/nova-vqos-$name" "$NOVA_BIN_DIR/nova-vqos-$name"
    done
    for name in calibrate probe; do
        ln -sfn "$HARNESS_DIR/$name.sh" "$NOVA_BIN_DIR/nova-vqos-$name"
    done
}

# pip_install_gr NAME: from PyPI, if global-requirements has it.
function pip_install_gr {
    record pip_install_gr "$@"
}

# pip_uninstall NAME: if it is there.
function pip_uninstall {
    record pip_uninstall "$@"
    rm -f "$NOVA_BIN_DIR"/nova-vqos-*
}

# sudo COMMAND...: as root; who runs this harness has to do.
function sudo {
    "$@"
}


# Services
# --------

# restart_service NAME: of the system.
function restart_service {
    record restart_service "$@"
}

# run_process SERVICE COMMAND [GROUP] [USER]: if the service is enabled, the
# unit devstack@SERVICE, made anew, runs the command, which has an absolute
# path and no sudo, as that user (STACK_USER). It does not wait.
function run_process {
    local unit=$SYSTEMD_DIR/devstack@$1.service
    if ! is_service_enabled "$1"; then
        return 0
    fi
    if [[ "$2" != /* || "$2" == *sudo* ]]; then
        die $LINENO "systemd will not run this: $2"
    fi
    record run_process "$@"
    iniset "$unit" Service User "${4:-$STACK_USER}"
    iniset "$unit" Service ExecStart "$2"
    # shellcheck disable=SC2086
    setsid $2 >>"$LOGS/$1.log" 2>&1 </dev/null &
    echo $! >"$LOGS/$1.pid"
}

# stop_process SERVICE: stops and disables its unit, if service and unit are
# enabled; the unit's file stays.
function stop_process {
    local pid
    if is_service_enabled "$1" && [[ -f "$LOGS/$1.pid" ]]; then
        record stop_process "$@"
        pid=$(<"$LOGS/$1.pid")
        kill "$pid"
        while kill -0 "$pid" 2>/dev/null; do
            command sleep 0.05
        done
        rm "$LOGS/$1.pid"
    fi
}

# sleep SECONDS: shorter, since what is waited for here is quick.
function sleep {
    command sleep 0.1
}


# Clients
# -------

# openstack ARGUMENT...: the client, as the administrator. Here: Placement,
# where nova-compute reports its units, once there is a profile, after it was
# asked for them a few times.
function openstack {
    local command="$*" asked=$LOGS/asked times
    local uuid=11111111-2222-4333-8444-555555555555
    case "$command" in
        "resource provider list --name $PROVIDER -f value -c uuid")
            echo $uuid
            ;;
        "resource provider list --name "*) ;;
        "resource provider inventory show $uuid CUSTOM_VQOS_CPU_UNIT \
-f value -c "*)
            echo >>"$asked"
            times=$(wc -l <"$asked")
            if [[ $times -lt 3 || ! -s "$REPORTED_PROFILE" ]]; then
                echo "No inventory of class CUSTOM_VQOS_CPU_UNIT" >&2
                return 1
            fi
            case "$command" in
                *total) echo 200 ;;
                *reserved) echo "${REPORTED_RESERVED:-0}" ;;
                *) return 2 ;;
            esac
            ;;
        *)
            echo "no such command: openstack $command" >&2
            return 2
            ;;
    esac
}

# virsh -c URI hostname: prints the name that libvirt gives this host.
function virsh {
    [[ "$1 $3" == "-c hostname" ]] || return 2
    echo "$PROVIDER"
}

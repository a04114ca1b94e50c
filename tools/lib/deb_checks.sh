# shellcheck shell=sh
# SPDX-License-Identifier: Apache-2.0
#
# Run by tools/deb.sh as root in a system where the packages were installed.
# /root/wanted has the sources.

fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

# The library: all of the sources but the tests, as they are.
site=/usr/lib/python3/dist-packages
(cd /root/wanted && find nova_vqos -type f ! -path 'nova_vqos/tests/*') |
    while read -r name; do
        cmp "/root/wanted/$name" "$site/$name" || exit 1
    done || fail 'the library is not what was built'
[ ! -e $site/nova_vqos/tests ] || fail 'the tests are installed'

# Programs.
for name in agent calibrate helper libvirt-hook manage partition probe status \
    vendordata
do
    program=/usr/bin/nova-vqos-$name
    [ "$(dpkg-query -S "$program" | cut -d: -f1)" != '' ]
    "$program" --help >/dev/null || fail "$program --help"
done
version=$(dpkg-query -W -f '${Version}' nova-vqos-agent)
said=$(nova-vqos-agent --version 2>&1)
[ "$said" = "$(echo "${version%-*}" | tr '~' .)" ] ||
    fail "nova-vqos-agent --version says $said, the package is $version"

# What Nova loads.
python3 -W ignore /root/nova_loads.py

# 1 is a warning, 2 a failure, as a host without a profile has; but all answer.
status=0
nova-vqos-status upgrade check >/root/status 2>&1 || status=$?
[ "$status" -le 2 ] || { cat /root/status; fail "nova-vqos-status: $status"; }
grep -q '^| Check: ' /root/status || { cat /root/status; fail 'no checks'; }
! grep Traceback /root/status || fail 'nova-vqos-status'

# The agent's user, and who reads the password of the bus.
[ "$(getent passwd nova-vqos | cut -d: -f6)" = /var/lib/nova-vqos ] ||
    fail 'the user nova-vqos'
found=$(stat -c '%U:%G %a' /etc/nova-vqos/nova-vqos.conf)
[ "$found" = 'root:nova-vqos 640' ] || fail "nova-vqos.conf is $found"

# Units.
cd /usr/lib/systemd/system || exit
systemd-analyze verify --man=no nova-vqos-*.service nova-vqos-*.socket \
    nova-vqos-*.timer vqosidle.slice 2>&1 | tee /root/verify
[ ! -s /root/verify ] || fail 'systemd-analyze verify'
for unit in nova-vqos-agent.service nova-vqos-helper.socket; do
    systemctl is-enabled "$unit" || fail "$unit is not enabled"
done

# The hook.
xml="<domain type='qemu'><vcpu>1</vcpu></domain>"
[ "$(echo "$xml" | /etc/libvirt/hooks/qemu.d/90-nova-vqos one migrate begin -)" \
    = "$xml" ] || fail 'the hook'

# What was measured on the host, and what the agent leaves, goes with a purge.
mkdir /var/lib/nova-vqos /var/lib/nova-vqos-verify
touch /etc/nova-vqos/profile.yaml /var/lib/nova-vqos/ledger.sqlite

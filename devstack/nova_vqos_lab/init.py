# SPDX-License-Identifier: Apache-2.0
"""The inside of a host: its namespaces, its PID 1, and a way in.

Run as a script, by nothing but host.py and without the lab's other modules:

    init.py boot SETTINGS.json      make the namespaces; its child is PID 1
    init.py enter SETTINGS.json PID [--detach SOCKET] -- COMMAND...
    init.py probe                   try what boot needs, print what fails

PID 1 of a host mounts what is the host's own, and then does what only a PID 1
can: it reaps. (Were libvirtd PID 1, the QEMUs that it ended would stay zombies
and it would wait 40 s for each.)
"""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys

_LIBC = ctypes.CDLL(None, use_errno=True)

_CLONE_NEWNS = 0x00020000
_CLONE_NEWCGROUP = 0x02000000
_CLONE_NEWUTS = 0x04000000
_CLONE_NEWIPC = 0x08000000
_CLONE_NEWPID = 0x20000000
_CLONE_NEWNET = 0x40000000
# In the order to enter them in: the mounts last, since /proc goes with them.
_NAMESPACES = {
    'cgroup': _CLONE_NEWCGROUP, 'ipc': _CLONE_NEWIPC, 'uts': _CLONE_NEWUTS,
    'net': _CLONE_NEWNET, 'pid': _CLONE_NEWPID, 'mnt': _CLONE_NEWNS,
}
_ALL_BUT_NET = (_CLONE_NEWNS | _CLONE_NEWCGROUP | _CLONE_NEWUTS
                | _CLONE_NEWIPC | _CLONE_NEWPID)

_MS_RDONLY = 0x1
_MS_REMOUNT = 0x20
_MS_BIND = 0x1000
_MS_REC = 0x4000
_MS_PRIVATE = 0x40000
_MNT_DETACH = 2
_PR_SET_PDEATHSIG = 1
_STOP_LIMIT_S = 5


def _check(result, what):
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f'{what}: {os.strerror(number)}')


def _setns(path, kind):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        _check(_LIBC.setns(descriptor, kind), f'entering {path}')
    finally:
        os.close(descriptor)


def _unshare(kinds):
    _check(_LIBC.unshare(kinds), 'making namespaces')


def _mount(source, target, kind=None, flags=0, options=None):
    _check(_LIBC.mount(
        source.encode(), target.encode(), kind and kind.encode(),
        ctypes.c_ulong(flags), options and options.encode()),
        f'mounting {source} on {target}')


def _bind(source, target):
    _mount(source, target, flags=_MS_BIND)


def _unmount(target):
    _check(_LIBC.umount2(target.encode(), _MNT_DETACH), f'unmounting {target}')


def _unmount_below(directory):
    """Unmount all there is at a directory and below, the last first."""
    with open('/proc/self/mounts', encoding='utf-8') as table:
        mounted = [line.split()[1] for line in table]
    for target in reversed(mounted):
        if target == directory or target.startswith(f'{directory}/'):
            _unmount(target)


def _join_groups(directories):
    for directory in directories:
        try:
            with open(os.path.join(directory, 'cgroup.procs'), 'w',
                      encoding='ascii') as stream:
                stream.write('0')
        except OSError as exc:
            # Errors of close(), which writes, come without a name.
            raise OSError(exc.errno, f'entering {directory}: '
                          f'{os.strerror(exc.errno)}') from exc


def _own_system_mounts(cgroups):
    """/proc of the pid namespace, /sys of the network's, own cgroups."""
    _mount('none', '/', flags=_MS_REC | _MS_PRIVATE)
    _unmount_below('/run/netns')
    _unmount_below('/proc')
    _mount('proc', '/proc', 'proc')
    # Not just covered: libvirt would read the old ones from /proc/mounts.
    _unmount_below('/sys')
    _mount('sysfs', '/sys', 'sysfs')
    if cgroups['version'] == 2:
        _mount('cgroup2', cgroups['mounts'][0]['directory'], 'cgroup2')
        return
    _mount('tmpfs', '/sys/fs/cgroup', 'tmpfs', options='mode=755')
    for mount in cgroups['mounts']:
        os.makedirs(mount['directory'], exist_ok=True)
        _mount('cgroup', mount['directory'], 'cgroup',
               options=mount['options'])


def _own_etc(scratch):
    """A writable copy of the machine's /etc, that vanishes with the host.

    :param scratch: an empty directory
    """
    # The upper layer of an overlay cannot lie on another overlay, as the
    # machine's disk may be one.
    _mount('tmpfs', scratch, 'tmpfs', options='mode=755')
    for name in ('upper', 'work'):
        os.mkdir(os.path.join(scratch, name))
    _mount('overlay', '/etc', 'overlay',
           options=f'lowerdir=/etc,upperdir={scratch}/upper,'
                   f'workdir={scratch}/work')


def _hide_kvm(scratch):
    """Have nothing find that guests could be otherwise than emulated.

    Two hosts that share one CPU's silicon cannot differ in speed.

    :param scratch: a directory to put a file into
    """
    path = os.path.join(scratch, 'no-kvm')
    os.close(os.open(path, os.O_CREAT, 0o400))
    _bind(path, '/dev/kvm')
    # NOTE: where libvirt finds that it may write there, and QEMU that it has
    # no KVM, it asks QEMU again what it can do, ten times for each guest that
    # it starts (virQEMUCapsIsValid()). On a read-only mount not even root may
    # write to a file; a device it may.
    _mount('none', '/dev/kvm', flags=_MS_BIND | _MS_REMOUNT | _MS_RDONLY)


def _boot(path):
    with open(path, encoding='utf-8') as stream:
        settings = json.load(stream)
    cgroups = settings['cgroups']
    # The cgroup that a process is in when it makes a cgroup namespace is the
    # root of that namespace.
    _join_groups(cgroups['root'])
    _setns(settings['network'], _CLONE_NEWNET)
    _unshare(_ALL_BUT_NET)
    child = os.fork()
    if child:
        print(child, flush=True)
        return
    os.setsid()
    try:
        _join_groups(cgroups['services'])
        socket.sethostname(settings['hostname'])
        _own_system_mounts(cgroups)
        _own_etc(settings['scratch'])
        for source, target in settings['binds']:
            if target.startswith('/etc/') and not os.path.exists(target):
                if os.path.isdir(source):
                    os.makedirs(target)
                else:
                    os.close(os.open(target, os.O_CREAT, 0o644))
            _bind(source, target)
        if not settings['kvm'] and os.path.exists('/dev/kvm'):
            _hide_kvm(settings['scratch'])
        os.chdir('/')
    except OSError as exc:
        print(f'failed: {exc}', flush=True)
        os._exit(1)
    print('ready', flush=True)
    devnull = os.open('/dev/null', os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(devnull, descriptor)
    os.close(devnull)
    _reap()


def _reap():
    """Be PID 1: reap, and end everything on SIGTERM."""
    wanted = {signal.SIGCHLD, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
    while signal.sigwait(wanted) == signal.SIGCHLD:
        _reap_now()
    _signal_all(signal.SIGTERM)
    while _reap_now():
        # The kernel kills what is left when PID 1 has gone.
        if signal.sigtimedwait({signal.SIGCHLD}, _STOP_LIMIT_S) is None:
            break
    os._exit(0)


def _reap_now():
    """:returns: whether there are children left, adopted ones included."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _signal_all(number):
    try:
        os.kill(-1, number)
    except ProcessLookupError:
        pass


def _enter(path, pid, answer, command):
    """Run a command in a host.

    :param path: of the host's settings
    :param pid: of the host's PID 1
    :param answer: None: wait for the command, and be killed with it;
        otherwise a socket: leave it behind as a child of the host's PID 1,
        which sends a byte (the kernel adds its pid, as the receiver knows
        it) or, where it cannot be run, says why
    :returns: the command's exit status, as a shell has it
    """
    with open(path, encoding='utf-8') as stream:
        settings = json.load(stream)
    _join_groups(settings['cgroups']['services'])
    # All opened before the first is entered: after the mounts, /proc is the
    # host's.
    opened = {name: os.open(f'/proc/{pid}/ns/{name}', os.O_RDONLY)
              for name in _NAMESPACES}
    root = os.open(f'/proc/{pid}/root', os.O_RDONLY)
    for name, kind in _NAMESPACES.items():
        _check(_LIBC.setns(opened[name], kind),
               f'entering the {name} namespace of the host')
        os.close(opened[name])
    # It is another than that of the mount namespace where the lab itself
    # runs in a chroot.
    os.fchdir(root)
    os.chroot('.')
    os.close(root)
    child = os.fork()
    if child:
        return _wait(child)
    if answer is None:
        # It must not outlive the command that the lab waits for.
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        # An orphan goes to the PID 1 of its parent's pid namespace: it takes
        # a parent that is in the host's already.
        if os.fork():
            os._exit(0)
        os.setsid()
        os.set_inheritable(answer.fileno(), False)
        answer.send(b'.')
    try:
        os.execvp(command[0], command)
    except OSError as exc:
        text = f'{command[0]} cannot be run: {exc.strerror}'
        if answer is None:
            print(text, file=sys.stderr)
        else:
            answer.send(text.encode())
        os._exit(127)


def _wait(child):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP,
                   signal.SIGQUIT):
        signal.signal(number, lambda number, _: os.kill(child, number))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return 128 - code if code < 0 else code


def _probe():
    """Do what boot does, one thing at a time, and leave no trace."""
    try:
        _unshare(_ALL_BUT_NET | _CLONE_NEWNET)
    except OSError as exc:
        return f'namespaces cannot be made here ({exc})'
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        _mount('none', '/', flags=_MS_REC | _MS_PRIVATE)
        _mount('proc', '/proc', 'proc')
        _mount('sysfs', '/sys', 'sysfs')
        _mount('tmpfs', '/run', 'tmpfs')
        os.mkdir('/run/scratch')
        _own_etc('/run/scratch')
    except OSError as exc:
        print(f'file systems cannot be mounted in a namespace here ({exc})')
    for arguments in (['br0', 'type', 'bridge'],
                      ['v0', 'type', 'veth', 'peer', 'name', 'v1']):
        done = subprocess.run(['ip', 'link', 'add', *arguments], check=False,
                              capture_output=True, text=True)
        if done.returncode:
            print(f'the kernel makes no link of type {arguments[2]} '
                  f'({done.stderr.strip()})')
    sys.stdout.flush()
    os._exit(0)


def main():
    mode, *arguments = sys.argv[1:]
    if mode == 'boot':
        return _boot(*arguments)
    if mode == 'probe':
        return _probe()
    split = arguments.index('--')
    settings, pid, *detach = arguments[:split]
    answer = socket.socket(fileno=int(detach[1])) if detach else None
    return _enter(settings, int(pid), answer, arguments[split + 1:])


if __name__ == '__main__':
    try:
        sys.exit(main())
    except OSError as error:
        sys.exit(f'failed: {error}')

# SPDX-License-Identifier: Apache-2.0
"""What the tests have to be told of a cloud."""

from oslo_config import cfg

GROUP = cfg.OptGroup('nova_vqos', title='CPU units of nova_vqos')

OPTIONS = [
    cfg.IntOpt(
        'units', default=60, min=2,
        help='CPU units of a server with one vCPU in these tests: each host '
             'must have room for one, and a pCPU that is as fast.'),
    cfg.IntOpt(
        'several_vcpus', default=2, min=1,
        help='vCPUs of a server with several, which shares these units among '
             'them: at most as many as a host has pCPUs. 1: what needs '
             'several is skipped.'),
    cfg.StrOpt(
        'work_image_ref',
        help='ID of an image whose guest works without end and prints what '
             'it has done, as nova_vqos.calibration.guest says. Without it '
             'no speed is '
             'measured.'),
    cfg.FloatOpt(
        'reference_score', default=0.0, min=0.0,
        help='What the reference pCPU does of that work, in events per '
             'second: its score by the benchmark integer, in the profile of '
             'any host. 0: not known, and no speed is measured.'),
    cfg.FloatOpt(
        'speed_tolerance', default=0.1, min=0.0, max=1.0,
        help='How far a measured speed may be from the promised one, '
             'relative to that.'),
    cfg.IntOpt(
        'speed_timeout', default=300, min=1,
        help='Seconds after which a guest must have printed enough to be '
             'measured.'),
    cfg.IntOpt(
        'too_fast_units', default=0, min=0,
        help='CPU units of a server with one vCPU that slow_host is too '
             'slow for and another host is not. 0: all hosts are equally '
             'fast, and what needs unequal ones is skipped.'),
    cfg.StrOpt(
        'slow_host',
        help='Name of the host that is too slow for that.'),
    cfg.BoolOpt(
        'guarantees_speed', default=False,
        help='Whether a host guarantees the speed of servers whose flavor '
             'requires it, and has room for one. Otherwise none may.'),
    cfg.StrOpt(
        'single_host_zone',
        help='An availability zone of one host, for what must not move to '
             'another: resizes, where hosts have no SSH between them, and '
             'filling a host. Without it that is skipped.'),
]

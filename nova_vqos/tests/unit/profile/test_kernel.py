# SPDX-License-Identifier: Apache-2.0
"""How a kernel schedules, by the files that say so."""

import gzip

import pytest

from nova_vqos.profile import kernel

RELEASE = '7.0.1-cloud'
FEATURES = 'PLACE_LAG {} NEXT_BUDDY WAKEUP_PREEMPTION NO_HRTICK_DL'


@pytest.fixture
def root(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def make(*, built=('NONE',), dynamic=True, command_line='ro quiet',
             now=None, features=None, hrtick=True, lazy=True):
        """:param now: of debugfs
        :param features: likewise
        :param lazy: whether it can preempt lazily
        """
        options = [f'CONFIG_PREEMPT{"_" * bool(name)}{name}=y'
                   for name in built]
        options += ['CONFIG_PREEMPT_BUILD=y']
        options += ['CONFIG_PREEMPT_DYNAMIC=y'] * dynamic
        options += ['CONFIG_ARCH_HAS_PREEMPT_LAZY=y'] * lazy
        options += ['CONFIG_SCHED_HRTICK=y'] * hrtick
        write(f'boot/config-{RELEASE}', '\n'.join(options) + '\n')
        write('proc/cmdline', f'{command_line}\n')
        if now is not None:
            write('sys/kernel/debug/sched/preempt', now)
        if features is not None:
            write('sys/kernel/debug/sched/features', features)
        return str(tmp_path)
    return make


def at_boot(root, release=RELEASE):
    return kernel.preemption_at_boot(
        kernel.build_options(root, RELEASE), root, release)


def test_options_are_parsed_once(root):
    made = root()
    found = kernel.build_options(made, RELEASE)
    assert kernel.build_options(made, RELEASE) is found
    root(hrtick=False)
    again = kernel.build_options(made, RELEASE)
    assert found.keys() - again.keys() == {'CONFIG_SCHED_HRTICK'}


@pytest.mark.parametrize(('built', 'model'), [
    (['NONE'], 'none'), (['VOLUNTARY'], 'voluntary'), ([''], 'full'),
    (['LAZY'], 'lazy'), (['RT', ''], 'rt'), ([], 'unknown')])
def test_what_a_kernel_was_built_with(root, built, model):
    made = root(built=built, dynamic=False, command_line='preempt=full')
    assert at_boot(made) == model
    # It cannot be changed.
    assert kernel.scheduling(made, RELEASE).preemption == model


@pytest.mark.parametrize(('line', 'model'), [
    ('ro preempt=lazy quiet', 'lazy'), ('preempt=full preempt=none', 'none'),
    ('preempt=full preempt=many', 'full'), ('nopreempt=full', 'voluntary'),
    ('preempt=rt', 'voluntary'), ('ro -- preempt=full', 'voluntary'),
    ('', 'voluntary')])
def test_what_a_kernel_was_booted_with(root, line, model):
    made = root(built=['VOLUNTARY'], command_line=line)
    assert at_boot(made, '6.18.1') == model


@pytest.mark.parametrize(('release', 'lazy', 'model'), [
    ('6.18.1', True, 'none'), ('7.0.0', True, 'full'),
    ('7.0.0', False, 'none'), ('10.1', True, 'full')])
def test_models_that_a_kernel_does_not_have_any_more(root, release, lazy,
                                                     model):
    made = root(built=[''], command_line='preempt=none', lazy=lazy)
    assert at_boot(made, release) == model


def test_a_kernel_that_cannot_preempt_lazily(root):
    made = root(built=[''], command_line='preempt=lazy', lazy=False)
    assert at_boot(made) == 'full'


def test_a_real_time_kernel_stays_one(root):
    """Of which debugfs shows full or lazy."""
    made = root(built=['RT', 'LAZY'], command_line='preempt=full',
                now='(full) lazy\n')
    assert at_boot(made) == kernel.scheduling(made, RELEASE)[0] == 'rt'


def test_what_was_changed_since(root):
    made = root(now='none voluntary full (lazy)\n',
                features=FEATURES.format('HRTICK'))
    assert kernel.scheduling(made, RELEASE) == ('lazy', 'y')
    # What all users see is the same before and after.
    assert at_boot(made) == 'none'


def test_without_debugfs_a_change_may_be_unseen(root):
    assert kernel.scheduling(root(), RELEASE) == ('unknown', 'unknown')


@pytest.mark.parametrize(('features', 'built', 'hrtick'), [
    ('HRTICK', True, 'y'), ('NO_HRTICK', True, 'n'), (None, True, 'unknown'),
    (None, False, 'n'), ('HRTICK', False, 'n')])
def test_hrtick(root, features, built, hrtick):
    made = root(hrtick=built, features=features and FEATURES.format(features))
    assert kernel.scheduling(made, RELEASE).hrtick == hrtick


def test_nothing_can_be_read(tmp_path):
    found = kernel.scheduling(str(tmp_path), RELEASE)
    assert found == ('unknown', 'unknown')
    assert str(found) == 'preemption unknown, HRTICK unknown'


def test_the_running_kernels_own_options_win(root, tmp_path):
    made = root()
    with gzip.open(tmp_path / 'proc/config.gz', 'wt') as file:
        file.write('CONFIG_PREEMPT_LAZY=y\n# CONFIG_SCHED_HRTICK is not set\n')
    options = kernel.build_options(made, RELEASE)
    assert kernel.value(options, 'CONFIG_PREEMPT_LAZY') == 'y'
    assert kernel.value(options, 'CONFIG_SCHED_HRTICK') == 'n'
    assert kernel.scheduling(made, RELEASE).hrtick == 'n'

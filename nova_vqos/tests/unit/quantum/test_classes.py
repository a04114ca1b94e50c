# SPDX-License-Identifier: Apache-2.0
"""Slices of the quantum classes."""

from hypothesis import given
from hypothesis import strategies as st
from oslo_config import cfg
import pytest

from nova_vqos import policy
from nova_vqos import units
from nova_vqos.conf import vqos
from nova_vqos.quantum import classes


def test_the_names_are_those_of_a_flavor():
    assert {classes.IO, classes.SPIN, classes.CACHE, classes.NEUTRAL,
            classes.DEFAULT, 'auto'} == set(
                policy.CHOICES[policy.QUANTUM_CLASS_KEY])


def test_missing_slices_have_defaults():
    # That of io is the kernel's matter.
    assert classes.slices_us({}) == {'cache': 90_000}
    assert classes.slices_us({'cache': '30000'}) == {'cache': 30_000}
    # What is returned is the caller's own.
    assert classes.DEFAULT_SLICES_US['cache'] == 90_000


def test_one_for_spin_has_no_effect():
    """Configurations of versions in which it had a slice hold."""
    assert classes.slices_us({'spin': '1000', 'io': '500'}) == {
        'io': 500, 'cache': 90_000}


@pytest.mark.parametrize('name', [
    'neutral', 'default', 'auto', 'IO', '', 'x' * 1000])
def test_a_class_without_a_slice_of_its_own(name):
    with pytest.raises(classes.SliceInvalid,
                       match='only io, cache have') as caught:
        classes.slices_us({name: '1000'})
    assert repr(name)[:70] in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize('value', [
    '99', '100001', '0', '-1000', '+1000', '1e3', '1000.0', '1_000', ' 1000',
    '', '٣٠٠٠', 'long', '0x3e8', '9' * 1000, 1000, None, True])
def test_a_slice_that_the_kernel_does_not_take(value):
    with pytest.raises(classes.SliceInvalid,
                       match='microseconds from 100 to 100000') as caught:
        classes.slices_us({'io': value})
    assert "the slice of 'io' is " in str(caught.value)
    assert repr(value)[:70] in str(caught.value)
    assert len(str(caught.value)) < 300


@given(st.sampled_from(classes.SLICED),
       st.integers(classes.MIN_SLICE_US, classes.MAX_SLICE_US))
def test_all_slices_of_the_kernel_are_valid(name, slice_us):
    assert classes.slices_us({name: str(slice_us)})[name] == slice_us


@pytest.mark.parametrize('text, expected', [
    ('', {}), (' ', {}), ('io:1000', {'io': '1000'}),
    (' io : 1000 , cache:90000,', {'io': '1000', 'cache': '90000'})])
def test_split(text, expected):
    assert classes.split(text) == expected


@pytest.mark.parametrize('text, reason', [
    ('io', 'CLASS:MICROSECONDS'), ('io=1000', 'CLASS:MICROSECONDS'),
    ('io:1000,io:2000', 'given once')])
def test_what_cannot_be_split(text, reason):
    with pytest.raises(classes.SliceInvalid, match=reason):
        classes.split(text)


@pytest.mark.parametrize('cap, expected', [
    (None, 90_000),
    # Nothing stops a vCPU that has the whole pCPU.
    (units.CpuCap(50_000, 50_000), 90_000),
    (units.CpuCap(30_000, 50_000), 30_000),
    (units.CpuCap(90_000, 200_000), 90_000),
    (units.CpuCap(120_000, 200_000), 90_000)])
def test_what_can_be_had_under_a_cap(cap, expected):
    assert classes.obtainable_run_us(90_000, cap) == expected


class TestOptions:
    @pytest.fixture
    def conf(self, tmp_path):
        conf = cfg.ConfigOpts()
        vqos.register_opts(conf)

        def make(lines=''):
            path = tmp_path / 'vqos.conf'
            path.write_text(f'[vqos]\n{lines}\n')
            conf([], default_config_files=[str(path)])
            return conf
        yield make
        # NOTE: oslo.config keeps what is set in the group, which all that
        # register it share.
        conf.clear_override('quantum_slices', 'vqos')

    def test_the_defaults(self, conf):
        conf = conf()
        assert vqos.slices_us(conf) == classes.DEFAULT_SLICES_US
        assert conf.vqos.cache_max_period_us == 200_000

    def test_some_are_given(self, conf):
        conf = conf('quantum_slices = cache:60000, io:3000\n'
                    'cache_max_period_us = 1000000')
        assert vqos.slices_us(conf) == {
            'io': 3000, 'cache': 60_000}
        assert conf.vqos.cache_max_period_us == 1_000_000

    @pytest.mark.parametrize('lines, option, reason', [
        ('quantum_slices = cache:100001', 'quantum_slices', '100000'),
        ('quantum_slices = cache', 'quantum_slices', 'MICROSECONDS'),
        ('quantum_slices = cache:1000,cache:1000', 'quantum_slices', 'once'),
        ('quantum_slices = auto:1000', 'quantum_slices', "'auto'"),
        ('cache_max_period_us = 999', 'cache_max_period_us', '1000'),
        ('cache_max_period_us = 1000001', 'cache_max_period_us', '1e+06')])
    def test_a_bad_class_is_refused_by_name(self, conf, lines, option, reason):
        conf = conf(lines)
        with pytest.raises(cfg.ConfigFileValueError) as caught:
            conf.vqos[option]
        assert option in str(caught.value)
        assert 'vqos' in str(caught.value)
        assert reason in str(caught.value)

    def test_the_same_holds_for_what_a_program_sets(self, conf):
        conf = conf()
        conf.set_override('quantum_slices', {'cache': '30000'}, 'vqos')
        assert vqos.slices_us(conf)['cache'] == 30_000
        with pytest.raises(ValueError, match="'neutral'"):
            conf.set_override('quantum_slices', {'neutral': '5000'}, 'vqos')

# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""Two runs of the same tests, compared."""

import pytest
import subunit

from nova_vqos.tests.upstream import compare

JUNIT = '''<testsuites><testsuite>
<testcase classname="a.A" name="test_passes">
  <properties><property name="drivers" value="2"/></properties>
</testcase>
<testcase classname="a.A" name="test_fails">
  <failure message="Traceback&#10;  a line&#10;ValueError: no"/>
</testcase>
<testcase classname="a.A" name="test_is_skipped">
  <skipped message="no Neutron"/>
</testcase>
<testcase classname="a.A" name="test_cleans_up_badly"/>
<testcase classname="a.A" name="test_cleans_up_badly">
  <error>boom</error>
</testcase>
</testsuite></testsuites>'''


def passed(drivers=None):
    return compare.Outcome(compare.PASSED, drivers=drivers)


def failed(reason='boom'):
    return compare.Outcome(compare.FAILED, reason)


def test_junit(tmp_path):
    path = tmp_path / 'junit.xml'
    path.write_text(JUNIT)
    assert compare.read_junit(str(path), 'drivers') == {
        'a.A.test_passes': passed(2),
        'a.A.test_fails': failed('ValueError: no'),
        'a.A.test_is_skipped': compare.Outcome(compare.SKIPPED, 'no Neutron'),
        'a.A.test_cleans_up_badly': failed(),
    }


@pytest.mark.parametrize('text', ['', '<testsuites>', 'no XML'])
def test_junit_that_is_none(tmp_path, text):
    path = tmp_path / 'junit.xml'
    path.write_text(text)
    with pytest.raises(ValueError, match='junit.xml is no JUnit XML'):
        compare.read_junit(str(path))


def write_subunit(path, *tests):
    with open(path, 'wb') as stream:
        result = subunit.StreamResultToBytes(stream)
        for name, status, details in tests:
            result.status(name, 'inprogress')
            for key, text in details.items():
                result.status(name, file_name=key, file_bytes=text.encode(),
                              mime_type='text/plain;charset=utf8', eof=True)
            result.status(name, status)


def test_subunit(tmp_path):
    path = str(tmp_path / 'stream')
    write_subunit(
        path, ('a.test_passes[id-1,smoke]', 'success', {'log': 'much'}),
        ('a.test_fails[id-2]', 'fail', {'traceback': 'a\nNotFound: it'}),
        ('setUpClass (a.A)', 'skip', {'reason': 'no Neutron'}))
    assert compare.read_subunit(path) == {
        'a.test_passes': passed(),
        'a.test_fails': failed('NotFound: it'),
        'setUpClass (a.A)': compare.Outcome(compare.SKIPPED, 'no Neutron'),
    }


def test_subunit_that_is_not_written_to_its_end(tmp_path):
    """As progress is told from."""
    path = tmp_path / 'stream'
    write_subunit(str(path), ('a.test_one', 'success', {}),
                  ('a.test_two', 'success', {}))
    whole = path.read_bytes()
    path.write_bytes(whole[:-7])
    assert 'a.test_one' in compare.read_subunit(str(path))
    assert 'a.test_two' not in compare.read_subunit(str(path))


def test_differences():
    stock = {'a': passed(), 'b': passed(), 'c': failed(), 'd': passed()}
    vqos = {'a': passed(), 'b': failed(), 'c': failed(), 'e': passed()}
    found = compare.compare(stock, vqos, {})
    assert [(one.test, one.stock.verdict, one.vqos.verdict)
            for one in found] == [
        ('b', compare.PASSED, compare.FAILED),
        ('d', compare.PASSED, compare.MISSING),
        ('e', compare.MISSING, compare.PASSED)]
    assert not any(one.why for one in found)


def test_a_known_difference_has_its_reason():
    (found,) = compare.compare({'x.A.b': passed()}, {'x.A.b': failed()},
                               {'A.b': 'it asks for what we change'})
    assert found.why == 'it asks for what we change'


@pytest.mark.parametrize(('stock', 'vqos', 'status'), [
    ([1, 1, 0], [1, 1, 0], 0), ([1, 1, 0], [1, 0, 0], 1),
    # Nothing differs where nothing works.
    ([0, 0, 1], [0, 0, 1], 1), ([], [], 1)])
def test_status(stock, vqos, status):
    runs = [{str(number): passed() if verdict else failed()
             for number, verdict in enumerate(run)} for run in (stock, vqos)]
    assert compare.status(*runs, compare.compare(*runs, {})) == status


def test_table():
    stock = {'a': passed(), 'b': passed(), 'c': failed('same')}
    vqos = {'a': passed(3), 'b': failed('ours'), 'c': failed('same')}
    text = compare.table(stock, vqos, compare.compare(stock, vqos, {}))
    assert 'passed           2          1' in text
    assert 'in 1 tests 3 drivers of nova_vqos sold units' in text
    assert 'fails with both: c\n    same' in text
    assert ('DIFFERS: b\n    stock passed, nova_vqos failed: ours\n'
            '    not explained') in text
